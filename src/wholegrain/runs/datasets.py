"""From a spec's `data` and `silos` sections to silos that keep their declared bounds.

Guarantee: a subject that leaves the file takes its own items along, and every other subject's items, part and silo stay
the same: all that is random here is tossed with coins of subjects (`data.subject_coins`).

What is refused here (a subject in too many silos, rows of an unknown silo, surplus that may not be dropped) is refused
on the machine of the data's owner, before anything is released. One person can decide such a refusal, so it is for the
owner's eyes.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain._random import Purpose
from wholegrain._secrets import secret_key
from wholegrain.data import partition, sources
from wholegrain.data.dataset import Dataset
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData
from wholegrain.data.table import encode, take_silos
from wholegrain.data.table_files import TextFormat, read, table_name
from wholegrain.errors import DataError, SpecError
from wholegrain.policies.as_printed import CLAIMED_UNIT
from wholegrain.policies.policy import SHARE_STEPS, SiloFacts
from wholegrain.policies.policy_catalog import find
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.declared_sizes import DeclaredSizes, declared_sizes
from wholegrain.runs.planning import policy_settings
from wholegrain.runs.score_groups import group_items
from wholegrain.runs.score_planning import TEST_SHARE, held_share
from wholegrain.runs.spec import GIVEN, RunSpec
from wholegrain.runs.spec_sections import TableSpec
from wholegrain.silo.training import Silo

log = logging.getLogger("wholegrain.runs")

MUCH_DROPPED = 0.05
"""The share of items beyond K from which on a simulation says so."""


@dataclass(frozen=True, eq=False)
class DataParts:
    """Silos to train in, and items that are held out to score on; the latter also by the groups of the spec."""

    silos: Mapping[str, Silo]
    held_out: Mapping[str, SubjectData]
    groups: Mapping[str, SubjectData]
    scored: Mapping[str, SubjectData] = field(default_factory=dict)
    """Of the part that is scored privately, what each silo holds out."""
    scored_spans: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """In how many silos the subjects of these items are, where it is known [item]."""


def load_dataset(spec: RunSpec) -> Dataset:
    """The data set that the spec names."""
    if spec.data.source == GIVEN:
        raise SpecError("The data of this run was given in Python; only the program that made it has it.")
    if spec.data.source != "table":
        if spec.data.table is not None:
            raise SpecError("A spec names either a data source or a table, not both.")
        return sources.load(spec.data.source, spec.data.options)
    if spec.data.table is None:
        raise SpecError("The spec names no data: set data.source, or describe a table in data.table.")
    table = spec.data.table
    if table.target.threshold is not None:
        log.warning(
            "target.threshold = %g means above it; write above = %g, or at_least = %g for this value and more.",
            *[table.target.threshold] * 3,
        )
    return encode(read_table(table), table.layout, table_name(Path(table.path)))


def read_table(table: TableSpec) -> pl.DataFrame:
    """The rows of the table that the spec takes, as they stand in the file."""
    text = TextFormat(table.encoding, table.decimal)
    return take_silos(read(Path(table.path), table.layout.names, text), table.layout)


def make_coins(spec: RunSpec, data: str) -> Coins:
    """What decides who is held out, which items survive K, and where a synthetic partition puts them.

    In a simulation the seed does. In a release nobody may know: the key is a secret of this machine, one for each name
    of data, so that a run that is resumed finds the same parts and silos, and the seed decides nothing.
    """
    if spec.privacy.noise == "seeded":
        return Coins.seeded(spec.seed)
    return Coins(secret_key(f"coins of the data {spec.ledger.data or data}"))


def split_dataset(dataset: Dataset, spec: RunSpec, coins: Coins | None = None) -> DataParts:
    """Hold out what is scored, spread the rest over silos, and enforce K and M.

    A silo whose size is declared is there even if nobody is in it: it trains on empty batches, which add noise as any
    other does.
    """
    coins, sizes = coins or make_coins(spec, dataset.name), declared_sizes(spec.silos)
    kept, held_out = _hold_out(dataset, spec, coins)
    labels = _labels(dataset, spec, coins)
    if spec.privacy.noise == "secure":
        _require_declared_classes(dataset)
        _require_known_silos(labels, sizes)
    by_name = partition.split(dataset.data, labels, kept, also=tuple(sizes.named))
    _require_span(by_name, spec.silos.span)
    silos = {name: _silo(name, data, dataset, spec, sizes, coins) for name, data in by_name.items()}
    if spec.privacy.noise == "seeded":
        _warn_of_dropped(by_name, silos, items_bound(dataset, spec))
        _warn_of_empty_parts(held_out, {"validation": spec.evaluation.validation, "test": _test_share(dataset, spec)})
    if spec.policy.by_span or dataset.spans is not None:
        silos = _with_spans(silos, dataset, spec.policy.by_share)
    parts = {name: dataset.data.take(index) for name, index in held_out.items() if len(index)}
    if dataset.test is not None and spec.evaluation.test is None:
        parts["test"] = dataset.test
    places = {name: labels[index] for name, index in held_out.items() if len(index)}
    groups = group_items(dataset, parts, places, spec.evaluation.groups)
    scored = _scored_by_silo(dataset, spec, labels, held_out, tuple(silos))
    return DataParts(silos, parts, groups, scored, spans_of_held_out(scored, dataset, spec.policy.by_span))


def _scored_by_silo(
    dataset: Dataset,
    spec: RunSpec,
    labels: partition.Labels,
    held_out: Mapping[str, np.ndarray],
    silos: tuple[str, ...],
) -> Mapping[str, SubjectData]:
    """What each silo holds out of the part that is scored privately; whoever is there is in no silo's training."""
    private = spec.evaluation.private
    if private is None:
        return {}
    if not held_share(spec, dataset.test is not None):
        raise SpecError(
            f"evaluation.private scores the part '{private.part}', and nobody is held out for it: set"
            f" evaluation.{private.part} to a share of the people, such as 0.2."
        )
    by_silo = partition.split(dataset.data, labels, held_out[private.part], also=silos)
    # A silo that nobody is trained in takes no part in the run, and so in no score.
    found = {name: data for name, data in by_silo.items() if name in silos}
    _require_span(found, spec.silos.span)
    return found


def items_bound(dataset: Dataset, spec: RunSpec) -> int | None:
    """K: what the spec declares, else what the source vouches for. Never what the data happens to hold."""
    declared = spec.silos.items_per_subject
    return dataset.items_per_subject if declared is None else _check.count("silos.items_per_subject", declared)


def drops_surplus(spec: RunSpec, silo: SiloFacts) -> bool:
    """Whether a silo drops a subject's surplus items or refuses the data: by what the policy's row is, not its name."""
    if not _protects_single_items(spec, silo):
        return spec.silos.surplus != "refuse"
    if spec.silos.surplus == "drop":
        raise SpecError(
            f"{spec.policy.name} cannot drop surplus items (a dropped item can let another in, which"
            " breaks its item-level guarantee); remove silos.surplus or raise items_per_subject."
        )
    return False


def _protects_single_items(spec: RunSpec, silo: SiloFacts) -> bool:
    policy = spec.policy
    if policy.as_printed:
        return CLAIMED_UNIT.get(policy.name) is Unit.ITEM
    if policy.rate is None and policy.batch_size is None:  # where data is only looked at; any rate shows the same row
        policy = policy.model_copy(update={"rate": 1.0})
    return find(policy.name).row(policy_settings(spec.model_copy(update={"policy": policy})), silo).sums_single_items


def _hold_out(dataset: Dataset, spec: RunSpec, coins: Coins) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
    """Positions to train on, and positions of each part that is held out."""
    law = partition.split_by_item if spec.evaluation.by == "item" else partition.split_by_subject
    # Who is held out depends on no input: without them, nothing large is copied.
    people = SubjectData(np.zeros((dataset.data.items, 0)), dataset.data.targets, dataset.data.subjects)
    kept, test = law(people, _test_share(dataset, spec), coins, "test")
    inner, validation = law(people.take(kept), spec.evaluation.validation, coins, "validation")
    if not len(inner):
        raise DataError("Nothing is left to train on; lower evaluation.test and validation.")
    held_out = {"validation": kept[validation], "test": test}
    return kept[inner], {name: _scored_items(people, index, spec, coins, name) for name, index in held_out.items()}


def _scored_items(
    people: SubjectData, held_out: NDArray[np.int64], spec: RunSpec, coins: Coins, part: str
) -> NDArray[np.int64]:
    """Positions of a part that is held out: all, or at most so many of each subject as are to be scored."""
    most = spec.evaluation.scored_items
    if most is None:
        return held_out
    return held_out[people.take(held_out).within_cap(most, coins.of(Purpose.CAP, "scored", part))]


def _test_share(dataset: Dataset, spec: RunSpec) -> float:
    """What is held out of the data for the test; nothing where the source has a test part of its own."""
    share = spec.evaluation.test
    if dataset.test is None:
        return TEST_SHARE if share is None else share
    if share:
        raise SpecError(
            f"The data '{dataset.name}' has a test part of its own, so that evaluation.test = {share} cannot be held"
            " out as well; leave it out, or set it to 0 to score no test part."
        )
    return 0.0


def _labels(dataset: Dataset, spec: RunSpec, coins: Coins) -> partition.Labels:
    if spec.silos.partition == "column":
        if dataset.silos is None:
            raise SpecError(
                f"The data '{dataset.name}' names no silos; set data.table.silo (in Python, from_frame(…, silo=…)), or"
                " choose silos.partition = 'uniform' or 'power' with silos.count (in Python, silos=4)."
            )
        return dataset.silos
    if spec.silos.count is None:
        raise SpecError(f"silos.partition = '{spec.silos.partition}' needs silos.count.")
    if not spec.silos.sizes and spec.silos.count > dataset.data.items:
        raise DataError(f"silos.count = {spec.silos.count} is more than the {dataset.data.items} items there are.")
    if spec.silos.partition == "uniform":
        return partition.uniform(dataset.data, spec.silos.count, coins)
    return partition.power(dataset.data, spec.silos.count, spec.silos.alpha, coins)


def _silo(name: str, data: SubjectData, dataset: Dataset, spec: RunSpec, sizes: DeclaredSizes, coins: Coins) -> Silo:
    bound, size = items_bound(dataset, spec), sizes.get(name)
    facts = SiloFacts(
        name=name,
        items=data.items if size is None else size.items,
        subjects=data.subject_count if size is None else size.subjects,
        items_per_subject=bound,
        drops_surplus=False,
        knows_spans=spec.policy.by_span or dataset.spans is not None,
        knows_shares=spec.policy.by_share,
        declared=size is not None,
    )
    drops = drops_surplus(spec, facts)
    if bound is not None and data.largest_subject > bound:
        if not drops:
            raise DataError(
                f"Silo '{name}' has subjects with more than items_per_subject = {bound} items, and"
                f" {spec.policy.name} does not drop any; raise the bound or remove the surplus."
            )
        data = data.cap_subjects(bound, coins.of(Purpose.CAP, name))
    if size is None:
        facts = replace(facts, items=data.items, subjects=data.subject_count)
    return Silo(replace(facts, drops_surplus=drops), data)


def _warn_of_dropped(before: Mapping[str, SubjectData], silos: Mapping[str, Silo], bound: int | None) -> None:
    """Tell how much K drops, where that is much. Private: the counts, so that a release says nothing of it."""
    total = sum(data.items for data in before.values())
    dropped = total - sum(silo.data.items for silo in silos.values())
    if dropped > MUCH_DROPPED * total:
        log.warning(
            "K = %s (silos.items_per_subject) drops %d of %d items (%.1f%%); a larger K keeps more of them, and costs"
            " subject_dp nothing.",
            bound,
            dropped,
            total,
            100 * dropped / total,
        )


def _warn_of_empty_parts(held_out: Mapping[str, NDArray[np.int64]], shares: Mapping[str, float]) -> None:
    """Tell of parts that are asked for and have nobody. Private, as what K drops is."""
    for name, share in shares.items():
        if share and not len(held_out[name]):
            log.warning(
                "There are no scores of the part '%s': evaluation.%s = %g holds out each by a coin of its own, and of"
                " so few it held out none. Take another seed, a larger share, or data of more people.",
                name,
                name,
                share,
            )


def _require_declared_classes(dataset: Dataset) -> None:
    """Refuse classes that were counted: in a release, the shape of the model is public."""
    if dataset.counted_classes:
        raise SpecError(
            'noise = "secure" makes a release, in which the number of classes is public and therefore not read off the'
            " data; declare it with from_torch(…, classes=…)."
        )


def _require_known_silos(labels: partition.Labels, sizes: DeclaredSizes) -> None:
    """Refuse rows of a silo that is not declared: in a release, the names of silos are public."""
    strange = [str(name) for name in np.unique(labels) if sizes.get(str(name)) is None]
    if strange:
        raise DataError(
            f"There are rows of a silo '{strange[0]}', of which silos.sizes says nothing; declare it there, or remove"
            " the rows."
        )


def _with_spans(silos: Mapping[str, Silo], dataset: Dataset, by_share: bool) -> dict[str, Silo]:
    """The silos, each with the number of silos that its items' subjects are in: as the source says, else counted.

    By share, each has in its place what `find_shares` says.
    Guarantee: a subject's span depends on its own rows alone.
    Private: what is counted; in a federation, silos agree on whose records are whose by a column or by `link`.
    """
    parts = {name: silo.data for name, silo in silos.items()}
    found = find_shares(parts, dataset) if by_share else find_spans(parts, dataset)
    return {name: replace(silo, spans=found[name]) for name, silo in silos.items()}


def spans_of_held_out(
    held_out: Mapping[str, SubjectData], dataset: Dataset, by_span: bool
) -> Mapping[str, NDArray[np.int64]]:
    """The same of the people whom silos hold out, where it is wanted or known."""
    return find_spans(held_out, dataset) if held_out and (by_span or dataset.spans is not None) else {}


def find_spans(parts: Mapping[str, SubjectData], dataset: Dataset) -> dict[str, NDArray[np.int64]]:
    """In how many silos the subject of each item is [item], by silo: as the source says, else counted.

    Private: all of it.
    """
    subjects, spans = np.unique(
        np.concatenate([np.unique(data.subjects) for data in parts.values()]), return_counts=True
    )
    if dataset.spans is not None:
        stated = largest_spans(dataset.data.subjects, dataset.spans)
        counted, spans = spans, np.array([stated[code] for code in subjects.tolist()], np.int64)
        if (spans < counted).any():
            raise DataError(
                f"{int((spans < counted).sum())} subjects are in more silos than their span says; spans that are too"
                " small would break the guarantee."
            )
    return {name: spans[np.searchsorted(subjects, data.subjects)] for name, data in parts.items()}


def find_shares(parts: Mapping[str, SubjectData], dataset: Dataset) -> dict[str, NDArray[np.int64]]:
    """SHARE_STEPS times the subject's items in all silos over those in this one, rounded up [item], by silo.

    Guarantee: the shares that one subject's numbers stand for add up to 1 at most. Private: all of it.
    """
    if dataset.spans is not None:
        raise SpecError("by_share counts items, and the data's column of spans counts silos; leave out one of them.")
    subjects, totals = np.unique(np.concatenate([data.subjects for data in parts.values()]), return_counts=True)
    found = {}
    for name, data in parts.items():
        _, place, own = np.unique(data.subjects, return_inverse=True, return_counts=True)
        found[name] = -(-SHARE_STEPS * totals[np.searchsorted(subjects, data.subjects)] // own[place])
    return found


def largest_spans(subjects: NDArray[np.int64], spans: NDArray[np.int64]) -> dict[int, int]:
    """The span of each subject; where its rows differ, the largest: it must never be too small."""
    found: dict[int, int] = {}
    for code, span in zip(subjects.tolist(), spans.tolist(), strict=True):
        found[code] = max(found.get(code, 1), span)
    return found


def _require_span(silos: Mapping[str, SubjectData], span: int | None) -> None:
    """Refuse data in which a subject is in more silos than the declared M: the guarantee would be false."""
    if span is None:
        return
    pairs = np.concatenate([np.unique(data.subjects) for data in silos.values()])
    _, counts = np.unique(pairs, return_counts=True)
    if counts.max(initial=0) > span:
        raise DataError(
            f"{int((counts > span).sum())} subjects have items in more than silos.span = {span}"
            f" silos (up to {counts.max()}); raise span or leave it out."
        )
