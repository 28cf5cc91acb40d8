"""What a private step costs in this checkout beside another one, slice by slice in turn.

Run: git worktree add ../before COMMIT; python benchmarks/versions.py ../before --models mlp256 cnn128

Each checkout has a process of its own, on one core, with one thread. Slices alternate, so that both meet the same
neighbours on a busy machine; times are CPU seconds. The ratio is that of neighbouring slices, and of the fastest ones.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from record import table

HERE = Path(__file__).resolve().parents[1]
POLICIES = {"per item": "local_item_dp", "per subject": "subject_dp"}
MODELS = ("cnn128", "cnn512", "lstm100", "mlp256", "transformer64")
SLICE, WARM_UP = 0.7, 3


def work(case: str, policy: str) -> None:
    """Be one of the two: take a slice of steps for every line that is read, and print the seconds of one step."""
    import torch

    import contestants
    from workloads import CASES

    torch.set_num_threads(1)
    contestant = contestants._ours(policy)(CASES[case].workload())
    for _ in range(WARM_UP):
        contestant.step()
    count = max(1, int(SLICE / _seconds(contestant, 1)))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(_seconds(contestant, count)), flush=True)


def _seconds(contestant: object, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        contestant.step()  # type: ignore[attr-defined]
    return (time.process_time() - start) / count


class Contender:
    """A checkout's process."""

    def __init__(self, root: Path, case: str, policy: str) -> None:
        folders = (root / "src", root / "benchmarks")
        code = f"import runpy; runpy.run_path({str(Path(__file__))!r})['work']({case!r}, {policy!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{root} cannot take a step of {case}; see above.")

    def slice(self) -> float:
        """Seconds of one step, over a slice of them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(before: Path, case: str, policy: str, slices: int) -> tuple[list[float], list[float]]:
    """Seconds of a step, before and now, slice by slice."""
    pair = Contender(before, case, policy), Contender(HERE, case, policy)
    times: tuple[list[float], list[float]] = [], []
    for turn in range(slices):
        for who in (0, 1) if turn % 2 else (1, 0):
            times[who].append(pair[who].slice())
    for contender in pair:
        contender.end()
    return times


def row(case: str, kind: str, before: list[float], now: list[float]) -> list[str]:
    """One line of the table."""
    ratio = statistics.median(b / a for a, b in zip(before, now, strict=True))
    times = [f"{1e3 * statistics.median(each):.3g} ms" for each in (before, now)]
    return [case, kind, *times, f"{ratio:.2f}", f"{min(now) / min(before):.2f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="another checkout of this project")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--slices", type=int, default=20)
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = []
    for case in chosen.models:
        for kind, policy in POLICIES.items():
            rows.append(row(case, kind, *compare(chosen.before.resolve(), case, policy, chosen.slices)))
            print(*rows[-1], file=sys.stderr, flush=True)
    print(table(["", "clipped", "before", "now", "median ratio", "fastest"], rows, markdown=True))


if __name__ == "__main__":
    main()
