"""`train` and `plan`: from data in memory to a finished run, or to what it would cost."""

import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from wholegrain.api.arguments import Settings, TrainSettings, read_keywords
from wholegrain.api.finished_run import Run, finished_run
from wholegrain.api.policy_values import PolicyMaker
from wholegrain.api.progress_bars import read_callbacks, show_progress
from wholegrain.clipping.reference import Loss
from wholegrain.data.dataset import Dataset
from wholegrain.data.frames import FRAME, is_table
from wholegrain.data.tensors import TENSORS
from wholegrain.errors import DataError, ModelError, SpecError
from wholegrain.federation.server_optimiser import Server, ServerOptimiser
from wholegrain.policies.plan import Plan
from wholegrain.report.model_card import write_card
from wholegrain.runs.observers import Observer, both
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_folder import RunFolder, require_free
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import GIVEN, RunSpec
from wholegrain.runs.spec_sections import PolicySpec

log = logging.getLogger("wholegrain.api")


def train(
    data: Dataset,
    net: nn.Module | None = None,
    *,
    policy: str | PolicySpec | PolicyMaker | Mapping[str, Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | Mapping[str, Any] | None = None,
    loss: str | Loss | None = None,
    out: str | Path | None = None,
    **settings: Unpack[TrainSettings],
) -> Run:
    """Train one model on all silos of the data, and say what that guarantees.

    `net` is any torch module whose layers keep items apart; without it, a linear model is trained. `policy` is one of
    the catalogue, by name or with settings: `wg.subject_dp(rate=0.1)`. The budget (`epsilon`, `delta`) is for one
    person in all silos and rounds together. `loss` is a name or a function that gives the mean over items. With `out`,
    a new folder keeps the run: `wg.load` reads it again. `callbacks` are told of every round. All other keywords are
    keys of a spec's sections; a whole section can be given as a mapping.

    >>> import wholegrain as wg
    >>> visits = wg.clinics(patients=200, clinics=3)
    >>> run = wg.train(visits, policy=wg.subject_dp(rate=0.5), epsilon=4, rounds=2, steps=2)
    >>> print(run.guarantee)
    subject: ε = 3.998, δ = 1e-05, PROVED by pld (simulation: seeded noise, sizes read off the data)
    """
    progress, observe = settings.pop("progress", None), read_callbacks(settings.pop("callbacks", None))
    keywords = {"policy": policy, "epsilon": epsilon, "delta": delta, "rounds": rounds, "loss": loss, **settings}
    folder = None if out is None else _new_folder(out)
    prepared = prepare_call("train", data, net, keywords)
    with show_progress(prepared.plan, progress) as bars:
        tell = both(bars, observe)
        result = _execute(prepared, tell) if folder is None else _execute_in(folder, prepared, tell)
    for sentence in result.warnings:
        log.warning("%s", sentence)
    return finished_run(prepared, result, data.layout, folder)


def plan(
    data: Dataset,
    net: nn.Module | None = None,
    *,
    policy: str | PolicySpec | PolicyMaker | Mapping[str, Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> Plan:
    """What `train` with the same arguments would do and cost, before anything is trained.

    >>> import wholegrain as wg
    >>> visits = wg.clinics(patients=200, clinics=3)
    >>> found = wg.plan(visits, policy=wg.subject_dp(rate=0.5), epsilon=4, rounds=2)
    >>> print(found.guarantee())
    subject: ε = 3.999, δ = 1e-05, PROVED by pld (simulation: seeded noise, sizes read off the data)
    """
    keywords = {"policy": policy, "epsilon": epsilon, "delta": delta, "rounds": rounds, **settings}
    return prepare_call("plan", data, net, keywords).plan


def prepare_call(call: str, data: Any, net: Any, keywords: dict[str, Any]) -> PreparedRun:
    """Everything that can be refused, from the arguments of a call."""
    dataset, model = require_data(data), require_model(net, keywords)
    if model is not None and not isinstance(keywords.get("model"), Mapping):
        keywords["model"] = model
    spec = read_keywords(call, keywords, dataset.layout)
    if spec.privacy.noise == "secure":
        spec = name_account(spec, dataset)
    loss = keywords.get("loss")
    prepared = prepare(spec, dataset=dataset, model=model, loss=loss if callable(loss) else None)
    server = keywords.get("server")
    server = Server(optimiser=server) if isinstance(server, ServerOptimiser) else server
    return replace(prepared, server=server) if isinstance(server, Server) else prepared


def _execute(prepared: PreparedRun, observe: Observer) -> RunResult:
    """Train, and keep nothing but what is returned."""
    with open_guard(prepared, secrets.token_hex(8)) as guard:
        return execute(prepared, guard, observe=observe)


def _execute_in(folder: Path, prepared: PreparedRun, observe: Observer) -> RunResult:
    """Train with everything on record."""
    kept = RunFolder.create(folder, prepared)
    every = prepared.spec.rounds.checkpoint_every
    with kept.lock(), open_guard(prepared, kept.run, folder, create=False) as guard:
        result = execute(
            prepared, guard, record=lambda done, state: kept.add_round(done, state, every), observe=observe
        )
        kept.finish(result)
    write_card(folder)
    return result


def _new_folder(out: str | Path) -> Path:
    folder = Path(out)
    require_free(folder)
    return folder


def require_data(data: Any) -> Dataset:
    """Data to train on, or a sentence that says how to make it."""
    if isinstance(data, Dataset):
        return data
    kind = type(data).__name__
    if is_table(data):
        raise DataError(
            f"A {kind} does not say whom its rows are about; declare that, and what is public of its columns, with"
            " wg.from_frame(df, subject=…, silo=…, target=…, features=…)."
        )
    if type(data).__module__.startswith("torch") or hasattr(data, "__getitem__"):
        raise DataError(
            f"A {kind} does not say whom its items are about; add that with"
            " wg.from_torch(dataset, subjects=…, silos=…)."
        )
    raise DataError(f"Data is made by wg.from_frame or wg.from_torch; this is {kind}.")


def require_model(net: Any, keywords: dict[str, Any]) -> nn.Module | None:
    """The module that was given, by place or by name."""
    other = keywords.get("model")
    if isinstance(net, nn.Module) and isinstance(other, Mapping) and "name" not in other:
        keywords["model"] = {**other, "name": GIVEN}  # a module, and what a spec would say of its training
        return net
    if net is not None and other is not None:
        raise SpecError("The model is given twice: as net and as model.")
    if isinstance(net, str | Mapping):
        keywords["model"], net = net, None
    if other is not None and not isinstance(other, str | Mapping):
        net = other
    if isinstance(net, type) and issubclass(net, nn.Module):
        raise ModelError(f"{net.__name__} is a class; give an instance of it: {net.__name__}(…).")
    if net is not None and not isinstance(net, nn.Module):
        raise ModelError(
            f"A model is a torch.nn.Module, or the name of one of the catalogue, not {type(net).__name__}."
        )
    return net


def name_account(spec: RunSpec, dataset: Dataset) -> RunSpec:
    """A release is paid for by the account of its data, which has a name that lasts."""
    if spec.ledger.data is not None:
        return spec
    if dataset.name in (FRAME, TENSORS):
        raise SpecError(
            "A release needs a name for its data, under which this machine keeps the account of all that is ever"
            " released from it: from_frame(…, name=…) or from_torch(…, name=…)."
        )
    return spec.model_copy(update={"ledger": spec.ledger.model_copy(update={"data": dataset.name})})
