"""Flat keywords are the sections of a spec; wrong ones get a suggestion."""

from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wholegrain as wg
from visit_tables import data
from wholegrain.api import policy_values
from wholegrain.api.arguments import Settings, flat_keys, known_keywords, read_keywords
from wholegrain.api.policy_values import PolicyMaker
from wholegrain.errors import SpecError
from wholegrain.federation.server_optimiser import Adam, Server
from wholegrain.policies.policy_catalog import CATALOG

DATA = wg.clinics(patients=120, clinics=3, span=2, visits=5)


def test_every_keyword_is_typed() -> None:
    named = {"policy", "epsilon", "delta", "rounds", "loss"}
    assert set(get_type_hints(Settings)) | named == set(known_keywords())
    assert named & set(get_type_hints(Settings)) == set()


def test_keywords_and_sections_say_the_same() -> None:
    flat = read_keywords(
        "train",
        {"policy": wg.subject_dp(rate=0.5), "epsilon": 4, "delta": 1e-6, "rounds": 7, "steps": 2, "span": 2}
        | {
            "items_per_subject": 5,
            "noise": "seeded",
            "test": 0.3,
            "seed": 3,
            "server": "adam",
            "loss": "cross_entropy",
        },
    )
    sections = read_keywords(
        "train",
        {"policy": {"name": "subject_dp", "rate": 0.5}, "privacy": {"epsilon": 4.0, "delta": 1e-6, "noise": "seeded"}}
        | {"rounds": {"count": 7, "steps": 2}, "silos": {"span": 2, "items_per_subject": 5}, "seed": 3}
        | {"evaluation": {"test": 0.3}, "server": {"step": "adam"}, "model": {"loss": "cross_entropy"}},
    )
    assert flat == sections
    assert flat.policy.model_fields_set == {"name", "rate"}
    assert flat.rounds.model_fields_set == {"count", "steps"}


def test_keywords_add_to_a_section() -> None:
    spec = read_keywords("train", {"rounds": {"count": 3}, "learning_rate": 0.5})
    assert (spec.rounds.count, spec.rounds.learning_rate) == (3, 0.5)
    with pytest.raises(SpecError, match=r"'rounds\.learning_rate' is given twice"):
        read_keywords("train", {"rounds": {"learning_rate": 3}, "learning_rate": 0.5})


def test_numbers_of_other_libraries_are_numbers() -> None:
    spec = read_keywords("train", {"epsilon": np.float32(4), "rounds": np.int64(3), "delta": torch.tensor(1e-5)})
    assert (spec.privacy.epsilon, spec.rounds.count) == (4.0, 3)


def test_silos_can_be_a_number() -> None:
    spec = read_keywords("train", {"silos": 5, "span": 2})
    assert (spec.silos.partition, spec.silos.count, spec.silos.span) == ("uniform", 5, 2)


MAKERS = {name: maker for name, maker in vars(policy_values).items() if isinstance(maker, PolicyMaker)}


@pytest.mark.parametrize("name", CATALOG)
def test_every_policy_of_the_catalogue_is_known_by_its_name(name: str) -> None:
    assert read_keywords("train", {"policy": name}).policy.name == name


@pytest.mark.parametrize("name", MAKERS)
def test_policies_with_a_maker_are_public_values(name: str) -> None:
    maker = MAKERS[name]
    assert getattr(wg, name) is maker
    assert name in wg.__all__
    made = maker(rate=0.25)
    assert (made.name, made.rate) == (name, 0.25)
    assert read_keywords("train", {"policy": name}) == read_keywords("train", {"policy": maker})
    assert set(CATALOG[name].reads) <= set(maker.settings)


@pytest.mark.parametrize("keyword", sorted(flat_keys()))
def test_a_slip_in_a_keyword_is_suggested(keyword: str) -> None:
    with pytest.raises(SpecError, match=f"did you mean '{keyword}'"):
        read_keywords("train", {keyword + "x": 1})


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"rate": 0.5}, r"no keyword 'rate': it is a setting of the policy, as in subject_dp\(rate=…\)"),
        ({"policy": "subject-dp"}, "did you mean 'subject_dp'"),
        ({"policy": 3}, "'policy' takes a name"),
        ({"epsilon": "4"}, r"privacy\.epsilon: it should be a valid number \(it is '4'\)"),
        ({"epsilon": -1}, "epsilon must be a number above 0, not -1"),
        ({"rounds": 0}, r"rounds\.count must be a whole number"),
        ({"rounds": 2.5}, r"rounds\.count"),
        ({"noise": "secret"}, r"privacy\.noise"),
        ({"server": 3}, "'server' takes a name"),
        ({"privacy": 4}, "'privacy' is a section"),
        ({"loss": 4}, "'loss' takes a name"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("coarse_prices")
def test_wrong_values_are_refused(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        wg.train(DATA, **{"policy": wg.subject_dp(rate=0.5), "epsilon": 4, **keywords})


def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.parametrize(
    "loss", [smooth, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets), nn.CrossEntropyLoss()]
)
def test_a_loss_can_be_a_function(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    run = wg.train(DATA, policy=wg.subject_dp(rate=0.5), epsilon=4, rounds=2, loss=loss)
    assert torch.isfinite(run.vector).all()


@pytest.mark.usefixtures("coarse_prices")
def test_a_server_can_be_a_name_an_optimiser_or_a_value() -> None:
    settings: dict[str, Any] = {"policy": wg.subject_dp(rate=0.5), "epsilon": 4, "rounds": 2, "learning_rate": 1.0}
    named, made = (wg.train(DATA, server=server, **settings) for server in ("adam", Adam()))
    assert torch.equal(named.vector, made.vector)
    assert torch.equal(wg.train(DATA, server=Server(optimiser=Adam()), **settings).vector, made.vector)


@pytest.mark.usefixtures("coarse_prices")
def test_plan_is_what_train_keeps() -> None:
    settings: dict[str, Any] = {"policy": wg.subject_dp(rate=0.5), "epsilon": 4, "rounds": 2}
    planned, run = wg.plan(data(), **settings), wg.train(data(), **settings)
    assert planned.guarantees == run.summary.planned
    assert run.guarantee == planned.guarantee()
