"""Kill -9 at random instants, then resume: is the model the same to the last bit, and did the ledger know first?

Run: python benchmarks/crashes.py --kills 200

- random: runs are killed at instants drawn over the time that an unbroken run takes, a share of them as separate
  processes; what goes on from there is killed again and again, with probability one half each time.
- points: a run kills itself before and after each operation on files or on the ledger, one after the other.
- damage: what a loss of power can do and a kill cannot: cut or garbled files, files that were left over.

After each kill, on a copy of what is there: the ledger verifies, and has reserved all that an independent log has seen
released, round by round and silo by silo. At the end: the same parameters and the same record as the unbroken run's,
and (for seeded noise) each release paid for exactly once. Any violation is printed, and the exit code is 1.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from killing import Release, Stage, Trap, fork, kill_after, launch, wait, was_killed
from wholegrain.errors import WholegrainError
from wholegrain.privacy.ledger import Ledger
from wholegrain.report.model_card import CARD
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import load

ROUNDS, STEPS, SILOS = 6, 2, 3

SPEC = f"""
seed = 5
[data]
source = "clinics"
options = {{ patients = 60, clinics = {SILOS}, span = 2, visits = 4 }}
[policy]
name = "subject_dp"
rate = 0.5
[privacy]
epsilon = 4.0
noise_multiplier = 6.0
noise = "%s"
[rounds]
count = {ROUNDS}
steps = {STEPS}
"""

GENEROUS = "[ledger]\nepsilon = 1000.0\n[silos.sizes]\n" + "".join(
    f"clinic-{silo:0{len(str(SILOS - 1))}d} = {{ items = 60, subjects = 25 }}\n" for silo in range(SILOS)
)
"""With secure noise a round that is played again costs again; here, it is not the budget that is tested. And sizes are
declared in a release."""


@dataclass
class Figures:
    """What happened, and what should not have."""

    kills: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    ended: int = 0
    repeated: int = 0
    violations: list[str] = field(default_factory=list)

    def require(self, true: bool, otherwise: str, stage: Stage) -> None:
        if not true:
            self.violations.append(f"{otherwise} ({stage.path})")
            print(f"VIOLATION: {self.violations[-1]}", flush=True)


@dataclass(frozen=True)
class Trial:
    """The spec, the unbroken run to compare with, and what was found so far."""

    base: Path
    spec: Path
    seeded: bool
    unbroken: Stage
    figures: Figures

    @contextlib.contextmanager
    def stage(self) -> Iterator[Stage]:
        """A fresh place; it is kept where something went wrong in it."""
        before = len(self.figures.violations)
        stage = Stage(Path(tempfile.mkdtemp(dir=self.base)))
        yield stage
        if len(self.figures.violations) == before:
            shutil.rmtree(stage.path)

    def goes_on(self, stage: Stage, trap: Trap | None = None) -> int:
        """The process that starts or resumes the run on this stage."""
        return fork(stage.command(self.spec), stage, trap)

    def note(self, stage: Stage) -> None:
        """Count where a kill fell, and check what it left on a copy, so that a resume finds it untouched."""
        with tempfile.TemporaryDirectory(dir=self.base) as folder:
            copy = Stage(Path(folder) / "copy")
            shutil.copytree(stage.path, copy.path)
            self.figures.left.update(_left(copy))
            self.figures.kills[_place(copy)] += 1
            self._check_ledger(copy, stage)

    def end(self, stage: Stage) -> None:
        """Go on to the end without another kill, and compare."""
        code = wait(self.goes_on(stage))
        said = stage.output.read_text() if stage.output.exists() else ""
        self.figures.require(code == 0, f"it cannot go on: exit code {code}: {said.strip()[-300:]}", stage)
        self.figures.ended += 1
        self.figures.repeated += stage.releases()[1]
        if code == 0:
            self._compare(stage)

    def _compare(self, stage: Stage) -> None:
        require = self.figures.require
        require((stage.out / "summary.json").exists(), "there is no summary", stage)
        require((stage.out / CARD).exists(), "there is no model card", stage)
        require(not list(stage.out.rglob("*.partial")), "a partial file was left", stage)
        self._check_ledger(stage, stage)
        if not self.seeded:
            return
        require(_model(stage) == _model(self.unbroken), "the parameters differ from the unbroken run's", stage)
        (rounds, spent), (expected, least) = _record(stage), _record(self.unbroken)
        require(rounds == expected, "the record differs from the unbroken run's", stage)
        # A round that is played again after later ones were paid for states what is spent by then.
        require(all(a >= b for a, b in zip(spent, least, strict=True)), "the record states less ε", stage)
        paid = _reserved(stage.ledger)
        require(set(paid.values()) == {STEPS}, "a release was paid for twice", stage)
        require(len(paid) == ROUNDS * SILOS, f"{len(paid)} releases are in the ledger", stage)

    def _check_ledger(self, copy: Stage, stage: Stage) -> None:
        """It verifies, and reserved at least what the log has seen: `copy` is read, `stage` is named."""
        released, _ = copy.releases()
        self.figures.checks += 1
        if not copy.out.exists():
            self.figures.require(not released, "something was released before there was a folder", stage)
            return
        try:
            Ledger.open(copy.ledger, create=False).close()
        except WholegrainError as error:
            self.figures.require(False, str(error), stage)
            return
        reserved = _reserved(copy.ledger)
        for release, steps in released.items():
            self.figures.require(
                reserved[release] >= steps, f"{release}: {steps} steps released, {reserved[release]} reserved", stage
            )


def _reserved(ledger: Path) -> Counter[Release]:
    """Steps reserved, read without any of our own code."""
    reserved: Counter[Release] = Counter()
    with contextlib.closing(sqlite3.connect(ledger)) as database:
        for (body,) in database.execute("SELECT body FROM entries"):
            entry = json.loads(body)
            if entry["kind"] == "reserved":
                reserved[entry["round"], entry["silo"]] += entry["steps"]
    return reserved


def _model(stage: Stage) -> bytes:
    return (stage.out / "model.safetensors").read_bytes()


def _record(stage: Stage) -> tuple[list[dict[str, object]], list[float]]:
    """The rounds' lines, but for how long they took; and ε spent after each."""
    lines = [json.loads(line) for line in (stage.out / "rounds.jsonl").read_text().splitlines()]
    spent = [line.pop("epsilon") for line in lines]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines], spent


def _place(stage: Stage) -> str:
    """Where a kill fell, by what is on disk; this reads the ledger, and so may roll it back."""
    if not stage.out.exists():
        return "before the folder"
    if (stage.out / "summary.json").exists():
        return "after the summary"
    recorded = (stage.out / "rounds.jsonl").read_bytes().count(b"\n")
    kept = max(int(file.stem.split("-")[1]) for file in (stage.out / "checkpoints").glob("*.safetensors"))
    if kept < recorded:
        return "between a round's line and its checkpoint"
    if recorded == ROUNDS:
        return "after the last round"
    return "in a round" if any(number >= recorded for number, _ in _reserved(stage.ledger)) else "between rounds"


def _left(stage: Stage) -> Iterator[str]:
    """What a kill left lying about."""
    names = [path.name for path in stage.path.rglob("*")]
    if any(name.endswith("-journal") for name in names):
        yield "a journal of the ledger to roll back"
    if any(name.endswith(".partial") for name in names):
        yield "a partial file"
    if any(name.startswith(".run.") for name in names):
        yield "a draft of the folder"


def kill_at_random(trial: Trial, kills: int, separate: float, seed: int) -> None:
    """Until so many kills have hit."""
    draw = random.Random(seed)
    for number in itertools.count():
        if trial.figures.kills.total() >= kills:
            break
        if number % 10 == 0:  # the machine has other work, too, and not always as much
            seconds = _seconds(trial, fork)
            alone = _seconds(trial, launch) if separate else 0.0
        with trial.stage() as stage:
            if draw.random() < separate:
                status = kill_after(launch(stage.command(trial.spec), stage), draw.uniform(0, alone))
            else:
                status = kill_after(trial.goes_on(stage), draw.uniform(0, seconds))
            while was_killed(status):
                trial.note(stage)
                if draw.random() < 0.5:
                    break
                status = kill_after(trial.goes_on(stage), draw.uniform(0, seconds))
            trial.end(stage)


def count_points(trial: Trial) -> int:
    """How many times an unbroken run stands before or after an operation on files or on the ledger."""
    with trial.stage() as stage:
        wait(trial.goes_on(stage, Trap(None)))
        return int(stage.ticks.read_text())


def kill_at_points(trial: Trial, most: int | None) -> int:
    """Before and after each operation, or at `most` of these points, spread evenly; how many points there are."""
    points = count_points(trial)
    count = points if most is None else min(most, points)
    for number in range(count):
        with trial.stage() as stage:
            status = kill_after(trial.goes_on(stage, Trap(number * points // count)), 600)
            trial.figures.require(was_killed(status), f"point {number * points // count} was not reached", stage)
            trial.note(stage)
            trial.end(stage)
    return points


def damage(trial: Trial, times: int, seed: int) -> Counter[str]:
    """Each kind of damage to a run that was killed half way, several times."""
    draw = random.Random(seed)
    survived: Counter[str] = Counter()
    with _half_way(trial) as half:
        for number in range(times * len(DAMAGES)):
            kind = DAMAGES[number % len(DAMAGES)]
            with trial.stage() as stage:
                shutil.copytree(half.path, stage.path, dirs_exist_ok=True)
                kind(stage.out, draw)
                trial.end(stage)
                survived[(kind.__doc__ or "").rstrip(".")] += 1
        if times:
            _destroy_all_checkpoints(trial, half)
    return survived


@contextlib.contextmanager
def _half_way(trial: Trial) -> Iterator[Stage]:
    """A run that was killed when it had recorded some rounds and was in another.

    It kills itself at a chosen point: on a busy machine, a run that is watched from outside may be over by the time
    that somebody looks.
    """
    with trial.stage() as stage:
        status = kill_after(trial.goes_on(stage, Trap(count_points(trial) * 3 // 4)), 600)
        recorded = (stage.out / "rounds.jsonl").read_bytes().count(b"\n")
        if not (was_killed(status) and 0 < recorded < ROUNDS):
            raise SystemExit(f"The run to be damaged had recorded {recorded} of {ROUNDS} rounds.")
        yield stage


def _destroy_all_checkpoints(trial: Trial, half: Stage) -> None:
    """Nothing to go on from: refused in one sentence, and nothing else is touched."""
    with trial.stage() as stage:
        shutil.copytree(half.path, stage.path, dirs_exist_ok=True)
        for file in (stage.out / "checkpoints").glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1])
        before = _contents(stage.out)
        code = wait(trial.goes_on(stage))
        said = stage.output.read_text()
        trial.figures.require(code == 2 and said.count("\n") == 1, f"exit code {code}: {said}", stage)
        trial.figures.require(_contents(stage.out) == before, "a refused resume changed files", stage)


NEXT = f"checkpoints/round-{ROUNDS:07}.safetensors"


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def _newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("*.safetensors"))


def cut_checkpoint(run: Path, draw: random.Random) -> None:
    """The newest checkpoint cut short."""
    file = _newest(run)
    os.truncate(file, draw.randrange(file.stat().st_size))


def garble_checkpoint(run: Path, draw: random.Random) -> None:
    """The newest checkpoint overwritten in part."""
    file = _newest(run)
    content = bytearray(file.read_bytes())
    at = draw.randrange(len(content))
    content[at : at + 16] = draw.randbytes(len(content[at : at + 16]))
    file.write_bytes(content)


def flip_checkpoint(run: Path, draw: random.Random) -> None:
    """The newest checkpoint with one bit flipped."""
    file = _newest(run)
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def cut_record(run: Path, draw: random.Random) -> None:
    """The last line of the record cut short."""
    _cut_last_line(run / "rounds.jsonl", draw)


def blank_record(run: Path, draw: random.Random) -> None:
    """The last line of the record full of zeros, as some file systems leave it."""
    _blank_last_line(run / "rounds.jsonl")


def cut_witness(run: Path, draw: random.Random) -> None:
    """The last line of the ledger's witness file cut short."""
    _cut_last_line(_witness(run), draw)


def blank_witness(run: Path, draw: random.Random) -> None:
    """The last line of the ledger's witness file full of zeros."""
    _blank_last_line(_witness(run))


def leave_partial_files(run: Path, draw: random.Random) -> None:
    """A partial file left over of everything that was still to be written."""
    for name in (NEXT, "rounds.jsonl", "model.safetensors", "summary.json"):
        (run / f"{name}.partial").write_bytes(draw.randbytes(100))


def everything(run: Path, draw: random.Random) -> None:
    """All at once: the newest checkpoint, both last lines, and partial files left over."""
    garble_checkpoint(run, draw)
    cut_record(run, draw)
    cut_witness(run, draw)
    leave_partial_files(run, draw)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    cut_checkpoint,
    garble_checkpoint,
    flip_checkpoint,
    cut_record,
    blank_record,
    cut_witness,
    blank_witness,
    leave_partial_files,
    everything,
)


def _witness(run: Path) -> Path:
    return next(file for place in (run, run.parent / "state") for file in place.glob("*.heads"))


def _cut_last_line(path: Path, draw: random.Random) -> None:
    *before, last, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*before, last[: draw.randrange(len(last))]]))


def _blank_last_line(path: Path) -> None:
    *before, last, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*before, bytes(len(last) + 1)]))


def _seconds(trial: Trial, begin: Callable[[list[str], Stage], int]) -> float:
    """How long an unbroken run takes now."""
    with trial.stage() as stage:
        started = time.monotonic()
        code = wait(begin(stage.command(trial.spec), stage))
        trial.figures.require(code == 0, f"an unbroken run ends with exit code {code}", stage)
        return time.monotonic() - started


def rehearse(base: Path, noise: str) -> Trial:
    """An unbroken run to compare with; everything that is imported late is imported here, before any child is made."""
    spec = base / "spec.toml"
    spec.write_text(SPEC % noise + (GENEROUS if noise == "secure" else ""))
    os.environ["WHOLEGRAIN_CACHE"], os.environ["WHOLEGRAIN_STATE"] = str(base / "cache"), str(base / "state")
    prepared = prepare(load(spec))
    with open_guard(prepared, "rehearsal") as guard:
        execute(prepared, guard)
    stage = Stage(base / "unbroken")
    stage.path.mkdir()
    if code := wait(fork(stage.command(spec), stage)):
        raise SystemExit(f"the unbroken run fails with exit code {code}: {stage.output.read_text()}")
    return Trial(base, spec, noise == "seeded", stage, Figures())


def show(title: str, figures: Figures, started: float) -> None:
    print(f"{title}: {figures.kills.total()} kills in {time.monotonic() - started:.0f} s")
    for place, count in figures.kills.most_common():
        print(f"  {count:5} {place}")
    for what, count in figures.left.most_common():
        print(f"  {count:5} left {what}")
    print(f"  {figures.ended:5} runs brought to their end, {figures.repeated} releases computed again on the way")
    print(f"  {figures.checks:5} checks of ledger against releases; violations so far: {len(figures.violations)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="at random instants")
    parser.add_argument("--separate", type=float, default=0.1, help="the share of separate processes among them")
    parser.add_argument("--points", type=int, help="kills at chosen points; all of them by default")
    parser.add_argument("--damages", type=int, default=5, help="of each kind")
    parser.add_argument("--noise", choices=["seeded", "secure"], default="seeded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to run; a temporary folder by default")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="crashes-", dir=options.folder))
    trial = rehearse(base, options.noise)
    print(f"An unbroken run takes {_seconds(trial, fork):.2f} s: {ROUNDS} rounds of {STEPS} steps in {SILOS} silos.")
    started = time.monotonic()
    kill_at_random(trial, options.kills, options.separate, options.seed)
    show("At random instants", trial.figures, started)
    violations = trial.figures.violations
    trial, started = _anew(trial), time.monotonic()
    points = kill_at_points(trial, options.points)
    show(f"At chosen points, of {points}", trial.figures, started)
    violations += trial.figures.violations
    trial, started = _anew(trial), time.monotonic()
    for kind, count in damage(trial, options.damages, options.seed).items():
        print(f"  {count:5} × {kind}")
    print(f"Damage: {trial.figures.ended} runs brought to their end in {time.monotonic() - started:.0f} s")
    violations += trial.figures.violations
    print(f"Violations: {len(violations)}")
    if violations:
        sys.exit(1)
    shutil.rmtree(base)


def _anew(trial: Trial) -> Trial:
    return Trial(trial.base, trial.spec, trial.seeded, trial.unbroken, Figures())


if __name__ == "__main__":
    main()
