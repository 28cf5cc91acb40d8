"""Recipes state the paper's settings [Marathe, §5], and every scale and source of data gives specs that can be run."""

import itertools
from pathlib import Path

import pytest

from wholegrain.errors import SpecError
from wholegrain_reproduction.data_choice import IMAGES, TEXT, DataSource
from wholegrain_reproduction.recipes import Kind, load_group_sizes, load_recipe
from wholegrain_reproduction.scales import Scale
from wholegrain_reproduction.trials import PAPER_ALGORITHMS, SUBJECT_ALGORITHMS, PaperTrial, make_trials, trial_key

CHANGED = 'title = "a"\nplace = "b"\nruns = {{}}\n[[change]]\nscale = {}\n'
RECIPES = ("femnist", "shakespeare", "distribution", "composition")


def of(recipe: str, scale: Scale = Scale.FULL, data: str | None = None) -> dict[str, PaperTrial]:
    loaded = load_recipe(recipe)
    source = data or ("shakespeare" if recipe == "shakespeare" else "femnist")
    return {trial.key: trial for trial in make_trials(loaded, scale, DataSource(source))}


@pytest.mark.parametrize(
    ("recipe", "batch", "rounds", "clip", "open_rate", "private_rate", "model"),
    [
        ("femnist", 512, 100, 0.001, 0.001, 0.01, "leaf_cnn"),
        ("shakespeare", 100, 200, 0.00001, 0.0002, 0.01, "stacked_lstm"),
    ],
)
def test_the_full_scale_is_the_papers(
    recipe: str, batch: int, rounds: int, clip: float, open_rate: float, private_rate: float, model: str
) -> None:
    found = of(recipe)
    for name in PAPER_ALGORITHMS:
        spec = found[trial_key(recipe, "", name, Kind.PRINTED)].spec
        assert (spec.silos.partition, spec.silos.count) == ("uniform", 16)
        assert (spec.policy.batch_size, spec.policy.clip_norm, spec.policy.as_printed) == (batch, clip, True)
        assert (spec.privacy.epsilon, spec.privacy.delta) == (4.0, 1e-5)
        assert (spec.rounds.count, spec.model.name, spec.model.options) == (rounds, model, {})
        assert spec.evaluation.validation == 0.2
    exact = {trial.algorithm: trial.spec.rounds.learning_rate for trial in found.values() if trial.kind is Kind.EXACT}
    assert exact == {"fedavg": open_rate, "local_group_dp": private_rate}


@pytest.mark.parametrize(("recipe", "rounds"), [("femnist", 25), ("shakespeare", 50)])
def test_sound_policies_train_as_many_rounds_as_the_paper_allows_for_subjects(recipe: str, rounds: int) -> None:
    found = of(recipe)
    for name in SUBJECT_ALGORITHMS:
        assert found[trial_key(recipe, "", name, Kind.CLAIMED)].spec.rounds.count == rounds
        assert found[trial_key(recipe, "", name, Kind.TRUE)].spec.rounds.count == rounds


def test_every_alpha_of_the_paper_is_compared() -> None:
    found = of("distribution")
    laws = {(trial.variant, trial.spec.silos.partition, trial.spec.silos.alpha) for trial in found.values()}
    assert laws == {(f"alpha-{alpha}", "power", alpha) for alpha in (2, 4, 8, 16)}


def test_the_second_way_is_what_the_composition_runs() -> None:
    printed, sound = [], []
    for trial in of("composition").values():
        (sound if trial.kind is Kind.TRUE else printed).append(trial)
    assert {trial.spec.policy.composition for trial in printed} == {"more_lots"}
    assert {trial.counterpart for trial in sound} == {trial.key for trial in printed}
    assert {trial.spec.rounds.count for trial in sound} == {100}  # the second way trains all rounds
    assert {trial.spec.policy.composition for trial in of("femnist").values()} == {"fewer_rounds"}


def test_runs_near_a_claims_edge_are_made_again_with_other_seeds() -> None:
    again = [trial for trial in of("distribution", Scale.SMALL, "mnist_writers").values() if trial.seed]
    assert {(trial.algorithm, trial.kind) for trial in again} == {("local_group_dp", Kind.PRINTED)}
    assert {(trial.variant, trial.spec.seed) for trial in again} == {
        (f"alpha-{alpha}", seed) for alpha in (2, 4, 8, 16) for seed in (1, 2)
    }


def test_group_sizes_have_femnists_geometry() -> None:
    found = load_group_sizes()
    assert (found.subjects, found.items, found.silos, found.batch_size) == (3500, 145, 16, 512)
    assert found.alphas == (2, 4, 8, 16)


@pytest.mark.parametrize(("recipe", "scale"), list(itertools.product(RECIPES, Scale)))
def test_every_scale_and_source_has_its_runs(recipe: str, scale: Scale) -> None:
    for data in TEXT if recipe == "shakespeare" else IMAGES:
        found = list(make_trials(load_recipe(recipe), scale, DataSource(data)))
        assert len({trial.key for trial in found}) == len(found)
        assert {trial.spec.data.source for trial in found} == {data}
        for trial in found:
            assert trial.counterpart is None or trial.counterpart in {other.key for other in found}


def test_printed_algorithms_declare_no_bound_and_drop_nothing() -> None:
    for trial in of("femnist").values():
        printed = trial.kind in (Kind.PRINTED, Kind.EXACT)
        assert (trial.spec.silos.items_per_subject is None) == printed
        assert trial.bound > 0


def test_a_path_reaches_the_source(tmp_path: Path) -> None:
    found = list(make_trials(load_recipe("femnist"), Scale.SMALL, DataSource("mnist_writers", tmp_path)))
    assert {trial.spec.data.options["path"] for trial in found} == {str(tmp_path)}
    assert "path" not in of("femnist", Scale.SMALL, "mnist_writers")[found[0].key].spec.data.options


def test_what_is_not_as_in_the_paper_is_said() -> None:
    for recipe, scale in itertools.product(("femnist", "shakespeare"), (Scale.SMALL, Scale.MEDIUM, Scale.SMOKE)):
        for data in TEXT if recipe == "shakespeare" else IMAGES:
            assert any(change.because for change in load_recipe(recipe).changes_for(scale, data))
    assert load_recipe("femnist").changes_for(Scale.FULL, "femnist") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no recipe"),
        ("title = ", "cannot be read"),
        ('title = "a"\nplace = "b"\nruns = {}\nspeck = {}', "unknown key 'speck'.*did you mean 'spec'"),
        ('title = "a"\nplace = "b"\nruns = { printed = ["fedavg"] }', "lacks learning_rate or sound"),
        (
            CHANGED.format('"smal"'),
            r"own.toml', unknown scale 'smal' \(did you mean 'small'\?\); known: smoke, small, ",
        ),
        (CHANGED.format('["small", "larg"]'), r"unknown scale 'larg'.*known: smoke, small, medium, full\.$"),
        (CHANGED.format("3"), "unknown scale '3'; known"),
        (CHANGED.format("{}"), "unknown scale '{}'; known"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "own.toml").write_text(text)
    with pytest.raises(SpecError, match=message):
        load_recipe("own", tmp_path)
