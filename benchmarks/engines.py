"""What an engine costs: rounds in one process, by torch.distributed and through Flower, beside the bare steps.

Run: python benchmarks/engines.py             the LEAF CNN in 16 silos: what two processes gain
     python benchmarks/engines.py --ranks     the LEAF CNN in one silo, 256 items: what a second process gains
     python benchmarks/engines.py --overhead  a model of 8 parameters in 3 silos: what a round costs beyond its steps

Every run is the command that a user types, with one thread per process; the seconds of its rounds are read from its
record, without the first, which warms up. The runs take turns. "Bare steps" trains the same silos from the same
parameters without ledger, record, averaging or engine. "Two at once" are two runs in one process each, side by side:
what two processes could do at best on this machine, whose cores may share what they compute with. Flower is a real
federation on the loopback: a SuperLink and three silos, with TLS, authentication, and a ledger in each. CPU time, which
other programs change less, is that of all processes of a run, from its first round to its last but one.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from record import ROOT, circumstances, table, told

sys.path.append(str(ROOT / "tests"))  # for the federation of real processes, which tests start as well
from deployment import as_toml
from loopback import Federation, rounds_of, running, simulation
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import in_process, prepare
from wholegrain.runs.spec import load

SPEC = """
[data]
source = "glyphs"
options = {{ writers = {writers}, items = {items} }}
[silos]
partition = "uniform"
count = {silos}
items_per_subject = {cap}
[model]
name = "leaf_cnn"
[policy]
name = "{policy}"
batch_size = {batch}
[privacy]
epsilon = 4.0
[rounds]
count = {rounds}
steps = 1
learning_rate = 0.01
[evaluation]
test = 0.0
"""


Ways = Mapping[str, Callable[[Path], list[float]]]
"""What is compared: each plays a run in a folder of its own and gives the seconds of its rounds."""


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        spec = folder / "spec.toml"
        if options.overhead:
            (folder / "federation").mkdir()
            federation = stack.enter_context(running(folder / "federation"))
            spec.write_text(as_toml(simulation(federation, options.rounds)))
            ways = {**one_machine(spec), "flower": lambda out: through_flower(federation, options.rounds, out.name)}
            found = measured(ways, options.turns, folder)
            print(overheads(found))
        elif options.ranks:
            print(shared_steps(options, folder))
        else:
            many = {"writers": 64, "items": 145, "cap": 20, "policy": "subject_dp", "batch": options.subjects}
            spec.write_text(SPEC.format(silos=options.silos, rounds=options.rounds, **many))
            both = lambda out: played(spec, [out, out.with_suffix(".other")])  # noqa: E731
            found = measured({**one_machine(spec), "inprocess, two at once": both}, options.turns, folder)
            print(gains(found))
    print(told(circumstances("wall")))


def one_machine(spec: Path) -> Ways:
    """The engines that need nobody else."""
    prepared = prepare(load(spec))
    return {
        "bare steps": lambda out: bare(prepared),
        "inprocess": lambda out: played(spec, [out]),
        "distributed, 1 process": lambda out: played(spec, [out], "--engine", "distributed"),
        "distributed, 2 processes": lambda out: played(spec, [out], "--engine", "distributed", "--processes", "2"),
    }


def shared_steps(options: argparse.Namespace, folder: Path) -> str:
    """Seconds and CPU seconds a round of one silo, whose steps one or two processes compute."""
    one = {"silos": 1, "writers": 256, "items": 4, "cap": 4, "policy": "local_item_dp", "batch": 256}
    spec = folder / "one.toml"
    spec.write_text(SPEC.format(rounds=options.rounds, **one))
    parts = ("--ranks-per-silo", "2")
    ways = {
        "inprocess": (),
        "inprocess, sum in 2 parts": parts,
        "distributed, 2 processes, sum in 2 parts": (*parts, "--engine", "distributed", "--processes", "2"),
    }
    cpu: dict[str, list[float]] = {way: [] for way in ways}

    def play(way: str, out: Path) -> list[float]:
        with watching_cpu(out, options.rounds - 1) as found:
            seconds = played(spec, [out], *ways[way])
        cpu[way].append((found[-1] - found[0]) / (len(found) - 1))
        return seconds

    found = measured({way: partial(play, way) for way in ways}, options.turns, folder)
    return gains(found, {"CPU seconds a round": [f"{statistics.median(cpu[way]):.2f}" for way in found]})


@contextlib.contextmanager
def watching_cpu(out: Path, rounds: int) -> Iterator[list[float]]:
    """CPU seconds that all processes below this one have had, each time that a run has recorded one of its rounds."""
    found: list[float] = []

    def watch() -> None:
        while len(found) < rounds:
            path = out / "rounds.jsonl"
            if path.exists() and len(path.read_text().splitlines()) > len(found):
                found.append(_cpu_below(os.getpid()))
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield found
    thread.join()


def _cpu_below(pid: int) -> float:
    """CPU seconds of a process' children and theirs, as Linux tells."""
    total = 0.0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        total += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") + _cpu_below(int(child))
    return total


def measured(ways: Ways, turns: int, folder: Path) -> dict[str, list[float]]:
    """The median seconds of a round, by way and turn."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns):
        for number, (way, play) in enumerate(ways.items()):
            found[way].append(statistics.median(play(folder / f"{turn}-{number}")))
            print(f"turn {turn + 1}: {way}: {found[way][-1]:.4f} s a round", file=sys.stderr)
    return found


def gains(found: dict[str, list[float]], more: Mapping[str, list[str]] | None = None) -> str:
    """Seconds a round, and rounds per second against one process, turn by turn; with further columns."""
    alone = found["inprocess"]
    rows = []
    for way, turns in found.items():
        runs = 2 if "two at once" in way else 1
        faster = statistics.median(runs * other / own for own, other in zip(turns, alone, strict=True))
        others = [column[len(rows)] for column in (more or {}).values()]
        rows.append([way, f"{statistics.median(turns):.2f}", f"{faster:.2f}", *others])
    return table(["", "seconds a round", "rounds per second ÷ inprocess", *(more or {})], rows, True)


def overheads(found: dict[str, list[float]]) -> str:
    """Milliseconds a round, and how many of them are not steps."""
    bare = found["bare steps"]
    rows = []
    for way, turns in found.items():
        beyond = statistics.median(own - other for own, other in zip(turns, bare, strict=True))
        rows.append([way, f"{1e3 * statistics.median(turns):.1f}", f"{1e3 * beyond:.1f}"])
    return table(["", "ms a round", "of which beyond the steps"], rows, True)


def bare(prepared: PreparedRun) -> list[float]:
    """Seconds for the steps of each round, one silo after the other."""
    engine, vector, seconds = in_process(prepared), prepared.first, []
    horizon = prepared.plan.horizon
    for round in range(horizon.rounds):
        started = time.perf_counter()
        for name in horizon.cohort(round):
            policy = prepared.plan.policy_for(name)
            engine.trainer.train(prepared.silos[name], policy, vector, round, horizon.steps)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def played(spec: Path, outs: list[Path], *engine: str) -> list[float]:
    """Seconds of each round of a run, or of several at once."""
    command = [sys.executable, "-m", "wholegrain", "run", str(spec), "--quiet", *engine]
    running = [subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL) for out in outs]
    if any(process.wait() for process in running):
        raise SystemExit("a run failed")
    lines = [line for out in outs for line in (out / "rounds.jsonl").read_text().splitlines()[1:]]
    return [json.loads(line)["seconds"] for line in lines]


def through_flower(federation: Federation, rounds: int, name: str) -> list[float]:
    """Seconds of each round of a run by the federation's server."""
    run = federation.serve(federation.write_server(name, rounds))
    return [line["seconds"] for line in rounds_of(run)[1:]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--silos", type=int, default=16)
    parser.add_argument("--subjects", type=int, default=20, help="expected subjects of a silo in a step")
    parser.add_argument("--ranks", action="store_true", help="one silo, whose steps two processes share")
    parser.add_argument("--overhead", action="store_true", help="a tiny model, and Flower, too")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
