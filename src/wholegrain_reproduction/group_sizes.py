"""How large a subject's group gets in a batch, by how subjects are spread over silos [Marathe, Fig. 2, §5.2]."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wholegrain._random import Purpose, generator
from wholegrain.data import partition
from wholegrain.data.sampling import FixedItems
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData, SubjectIndex
from wholegrain.policies.as_printed import make_printed_plan
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.definitions import Budget
from wholegrain.report.run_reader import read_run
from wholegrain.runs.spec import RunSpec
from wholegrain_reproduction.recipes import GroupSizesSpec, Recipe
from wholegrain_reproduction.subject_epsilon import TrueEpsilon, price_printed_plan
from wholegrain_reproduction.trials import PRIVATE_ALGORITHMS

UNIFORM = "uniform"


@dataclass(frozen=True)
class GroupSizes:
    """How many batches had a largest group of each size, under which placement of subjects."""

    placement: str
    alpha: float | None
    batches: Mapping[int, int]
    largest: int = 0
    """Most items that one subject has in a silo: the paper's k."""

    @property
    def mean(self) -> float:
        """The average over batches."""
        return sum(size * count for size, count in self.batches.items()) / sum(self.batches.values())

    @property
    def usual(self) -> int:
        """The most frequent size."""
        return max(self.batches, key=lambda size: self.batches[size])


def count_group_sizes(settings: GroupSizesSpec) -> Iterator[GroupSizes]:
    """Group sizes where every subject has the same number of items: uniformly placed, and by the power law."""
    subjects = np.repeat(np.arange(settings.subjects), settings.items)
    data = SubjectData(np.zeros((len(subjects), 0), np.uint8), subjects, subjects)
    coins = Coins.seeded(0)
    kept, _ = partition.split_by_item(data, settings.held_out, coins, "validation")
    data = data.take(kept)
    yield _count(UNIFORM, None, partition.uniform(data, settings.silos, coins), data, settings)
    for alpha in settings.alphas:
        labels = partition.power(data, settings.silos, alpha, coins)
        yield _count(f"α = {alpha:g}", alpha, labels, data, settings)


def read_group_sizes(folder: Path) -> GroupSizes:
    """Group sizes in the batches of a run, as its folder has them."""
    run = read_run(folder, folder.name)
    silos = run.spec.silos
    alpha = silos.alpha if silos.partition == "power" else None
    found = run.counts.batches.largest_group if run.counts and run.counts.batches else {}
    placement = UNIFORM if alpha is None else f"α = {alpha:g}"
    return GroupSizes(placement, alpha, found)


def _count(
    placement: str, alpha: float | None, labels: partition.Labels, data: SubjectData, settings: GroupSizesSpec
) -> GroupSizes:
    sampling, counts, largest = FixedItems(settings.batch_size), Counter[int](), 0
    for name in np.unique(labels):
        index = SubjectIndex.of(data.subjects[labels == name])
        largest = max(largest, int(index.counts.max()))
        draws = generator(0, Purpose.SAMPLING, "group sizes", str(name))
        counts.update(sampling.draw(index, draws).largest_group for _ in range(settings.batches))
    return GroupSizes(placement, alpha, dict(sorted(counts.items())), largest)


@dataclass(frozen=True)
class PaperPrice:
    """The true ε of an algorithm with the paper's own settings on its own geometry."""

    placement: str
    algorithm: str
    largest: int
    true_epsilon: TrueEpsilon


def price_paper(recipe: Recipe, settings: GroupSizesSpec, found: Iterable[GroupSizes]) -> Iterator[PaperPrice]:
    """The recipe's private algorithms at full scale on silos of the geometry's average size; nothing is trained."""
    spec = RunSpec.of({key: section for key, section in recipe.spec.items() if key != "data"})
    items = round(settings.subjects * settings.items * (1 - settings.held_out) / settings.silos)
    names = tuple(f"silo-{number}" for number in range(settings.silos))
    facts = tuple(SiloFacts(name=name, items=items, subjects=settings.subjects, drops_surplus=False) for name in names)
    for sizes in found:
        for algorithm in PRIVATE_ALGORITHMS:
            plan = make_printed_plan(
                algorithm,
                PolicySettings(batch_size=settings.batch_size, clip_norm=spec.policy.clip_norm),
                Federation(silos=facts),
                Horizon(silos=names, rounds=spec.rounds.count, steps=spec.rounds.steps),
                Budget(spec.privacy.epsilon or 0.0, spec.privacy.delta),
                largest_subject=dict.fromkeys(names, sizes.largest),
            )
            yield PaperPrice(
                sizes.placement, algorithm, sizes.largest, price_printed_plan(plan, sizes.largest, sizes.usual)
            )
