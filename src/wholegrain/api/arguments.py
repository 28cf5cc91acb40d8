"""Flat keywords of the Python calls, as the spec that they stand for.

A keyword is a key of one of the spec's sections, or the whole section as a mapping. What is left out stays unset in the
spec, for the defaults to choose.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from wholegrain import _check
from wholegrain.api.policy_values import PolicyMaker
from wholegrain.clipping.reference import Loss
from wholegrain.data.schema import TableLayout
from wholegrain.errors import SpecError
from wholegrain.federation.server_optimiser import Server, ServerOptimiser
from wholegrain.runs.section_files import Section
from wholegrain.runs.spec import GIVEN, RunSpec
from wholegrain.runs.spec_sections import PolicySpec

FLAT_SECTIONS = ("privacy", "rounds", "silos", "evaluation", "compute")
NOT_FLAT = {"count", "alpha", "train", "by"}
"""Keys that would not say what they count, or what they are of, without their section."""


ELSEWHERE = {
    "lr": "learning_rate", "eps": "epsilon", "target_epsilon": "epsilon", "target_delta": "delta", "epochs": "rounds",
    "num_rounds": "rounds", "n_rounds": "rounds", "optimizer": "server", "criterion": "loss", "random_state": "seed",
    "K": "items_per_subject", "M": "span", "verbose": "progress",
}  # fmt: skip
"""What other libraries and papers call a keyword."""
SEVERAL = {"metrics", "groups"}
"""Keys that take several names; one by itself does as well."""


class LoopSettings(TypedDict, total=False):
    """Keywords of `private_steps` beyond the first few. Each is a key of a spec, or a section as a mapping."""

    seed: int
    ledger: str | Path | Mapping[str, Any]
    """Where the budget is kept, or the section `[ledger]`."""
    noise: Literal["seeded", "secure"]
    unit: Literal["subject", "item", "silo"]
    noise_multiplier: float
    accountant: str
    memory_gib: float
    device: Literal["cpu", "cuda", "mps"]
    """Where gradients are computed."""
    precision: Literal["float32", "bfloat16", "float16"]
    """Of products in forward and backward passes; sums are in float64."""
    compiled: bool
    """What there is a program in C for is computed by it; see the page on gradients."""
    ranks_per_silo: int
    items_per_subject: int
    surplus: Literal["drop", "refuse"]
    sizes: Mapping[str, Any]
    """What is public of each silo, as in {"north": {"items": 4000, "subjects": 900}}."""
    privacy: Mapping[str, Any]
    compute: Mapping[str, Any]


class Settings(LoopSettings, total=False):
    """Keywords of `train` and `plan` beyond the first few."""

    server: Server | ServerOptimiser | str | Mapping[str, Any]
    """What the server makes of each round's mean: plain, momentum, adam, or a value."""
    model: Any
    """The model, as `net`; or the section `[model]` of a spec."""
    steps: int
    cohort: int
    learning_rate: float
    averaging: Literal["plain", "items", "subjects"]
    fewest_silos: int
    checkpoint_every: int
    silos: int | Mapping[str, Any]
    """Spread the items over so many silos at random; or the section `[silos]`."""
    trust: str | Mapping[str, Any]
    """Who sees what: local or secure_sum, or the section `[trust]`."""
    partition: Literal["column", "uniform", "power"]
    span: int
    test: float
    validation: float
    metrics: tuple[str, ...]
    scored_items: int
    private: Mapping[str, Any]
    """Private scores of people who are held out, as in {"every": 5}."""
    origin: Mapping[str, Any]
    """How settings were chosen, as in {"rounds": {"learning_rate": "unpaid"}}."""
    groups: tuple[str, ...]
    """Score the final model by group as well: by "silo", or by columns with categories."""
    evaluation: Mapping[str, Any]
    about: Mapping[str, Any]
    """Who trains and what for, as reports and model cards say it: author, purpose, controller, license …"""


class TrainSettings(Settings, total=False):
    """Keywords of `train` beyond the first few."""

    callbacks: Any
    """Told of every round: a function, an object with `on_round` (or `on_silo`), or several of them."""
    progress: bool
    """Whether bars are drawn; left out, they are on a terminal and in a notebook."""


def flat_keys() -> dict[str, str]:
    """The section of each key that can be given flat."""
    sections = {name: RunSpec.model_fields[name].annotation for name in FLAT_SECTIONS}
    return {key: name for name, section in sections.items() for key in _keys(section) if key not in NOT_FLAT}


def known_keywords() -> tuple[str, ...]:
    """Every keyword that a call takes."""
    sections = [name for name in RunSpec.model_fields if name not in ("data", "federation")]
    return tuple(dict.fromkeys(["loss", *sections, *flat_keys()]))


def read_keywords(call: str, keywords: Mapping[str, Any], layout: TableLayout | None = None) -> RunSpec:
    """The spec that these keywords ask for; the data, and a model or a loss that is a value, are marked as given.

    What is declared of a table is public, and kept, so that the model can be used on another one.
    """
    _require_known(call, keywords)
    table = None if layout is None else {"path": GIVEN, **{f.name: getattr(layout, f.name) for f in fields(layout)}}
    tree: dict[str, Any] = {"data": {"source": GIVEN, "table": table}}
    for name, value in keywords.items():
        if value is not None:
            _place(tree, name, _plain(value))
    return RunSpec.of(tree)


def _require_known(call: str, keywords: Iterable[str]) -> None:
    known = known_keywords()
    for name in keywords:
        if name in known:
            continue
        if name in PolicySpec.model_fields:
            raise SpecError(
                f"{call} has no keyword '{name}': it is a setting of the policy, as in subject_dp({name}=…)."
            )
        if name in ELSEWHERE:
            raise SpecError(f"{call} has no keyword '{name}'; here it is called '{ELSEWHERE[name]}'.")
        raise SpecError(f"{call} has no keyword '{name}'{_check.suggestion(name, known)}; it has {', '.join(known)}.")


def _place(tree: dict[str, Any], name: str, value: Any) -> None:
    """Put one keyword where it belongs in the tree of sections."""
    if name in WHOLE and not isinstance(value, Mapping):
        section, inner = WHOLE[name](value)
    elif name in flat_keys():
        section, inner = flat_keys()[name], {name: (value,) if name in SEVERAL and isinstance(value, str) else value}
    elif name == "seed":
        tree[name] = value
        return
    else:
        section, inner = name, dict(_mapping(name, value))
    found = tree.setdefault(section, {})
    for key in inner:
        if key in found:
            raise SpecError(f"'{section}.{key}' is given twice: by a keyword and in its section.")
    found.update(inner)


def _policy(value: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(value, PolicyMaker):
        value = value()
    if isinstance(value, PolicySpec):
        return "policy", value.model_dump(exclude_unset=True)
    return "policy", {"name": _text("policy", value, "subject_dp")}


def _model(value: Any) -> tuple[str, dict[str, Any]]:
    return "model", {"name": value if isinstance(value, str) else GIVEN}


def _loss(value: Any) -> tuple[str, dict[str, Any]]:
    if callable(value):
        return "model", {"loss": importable_name(value) or GIVEN}
    return "model", {"loss": _text("loss", value, "cross_entropy")}


def _rounds(value: Any) -> tuple[str, dict[str, Any]]:
    return "rounds", {"count": value}


def _silos(value: Any) -> tuple[str, dict[str, Any]]:
    return "silos", {"partition": "uniform", "count": value}


def _server(value: Any) -> tuple[str, dict[str, Any]]:
    return "server", {} if isinstance(value, Server | ServerOptimiser) else {"step": _text("server", value, "adam")}


def _trust(value: Any) -> tuple[str, dict[str, Any]]:
    return "trust", {"model": _text("trust", value, "secure_sum")}


def _ledger(value: Any) -> tuple[str, dict[str, Any]]:
    return "ledger", {"path": str(Path(value).absolute())}


WHOLE: Mapping[str, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    "policy": _policy,
    "model": _model,
    "loss": _loss,
    "rounds": _rounds,
    "silos": _silos,
    "server": _server,
    "ledger": _ledger,
    "trust": _trust,
}
"""Keywords that take a section as a mapping, or something shorter."""


def importable_name(loss: Loss) -> str | None:
    """`module:function`, where that is how another process finds it."""
    module, name = getattr(loss, "__module__", None), getattr(loss, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__" or not name.isidentifier():
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return f"{module}:{name}" if found is loss else None


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"'{name}' is a section of a spec: give a mapping, not {value!r}.")
    return value


def _text(name: str, value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"'{name}' takes a name such as '{example}', or a value, not {value!r}.")
    return value


def _keys(section: Any) -> Iterable[str]:
    assert isinstance(section, type)
    assert issubclass(section, Section)
    return section.model_fields
