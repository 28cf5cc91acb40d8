"""What a private step costs beside a plain one: time and peak memory, ours and peers', in one interleaved run.

Run: python benchmarks/gradients.py --json gradients.json --markdown

A private step is gradient, clipping, noise for every parameter, and update; a plain one is gradient and update. Every
contestant has a process of its own and one thread. How they take turns is told in contest.py; batches, and which items
belong to which subject, in workloads.py.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import record
from contest import BASE, Pace, hold
from contestants import CONTESTANTS
from record import table
from workloads import CASES

ROUNDS, SLICE = 15, 0.5
QUICK_ROUNDS, QUICK_SLICE = 3, 0.1


def run(models: list[str], contestants: list[str], pace: Pace) -> dict[str, Any]:
    """Every contest in turn."""
    names = [BASE, *(name for name in contestants if name != BASE)]
    found = []
    for case in models:
        print(f"{CASES[case].title} …", file=sys.stderr, flush=True)
        found.append(hold(case, names, pace))
    return {"circumstances": record.circumstances(pace.clock), "models": found}


def report(found: dict[str, Any], markdown: bool) -> str:
    """All tables, and what was left out."""
    lines = [record.told(found["circumstances"]), ""]
    for model in found["models"]:
        lines += ["### " * markdown + heading(model), "", model_table(model, markdown), ""]
        lines += [f"- {CONTESTANTS[name].title}: left out, {why}." for name, why in model["skipped"].items()]
        lines += [f"- {c['title']}: its sum differs, {c['differs']}." for c in model["contestants"] if c["differs"]]
        lines += [""]
    return "\n".join(lines)


def heading(model: dict[str, Any]) -> str:
    """What was timed, with its sizes."""
    return f"{model['title']}: {model['parameters']:,} parameters, {model['subjects']} subjects in the batch"


def model_table(model: dict[str, Any], markdown: bool) -> str:
    """One row per contestant."""
    heads = ["", "time ÷ plain", "quartiles", "sum alone", "step"]
    heads += ["peak memory", "÷ plain", "beyond imports", "difference"]
    return table(heads, [_row(contestant) for contestant in model["contestants"]], markdown)


def _row(found: dict[str, Any]) -> list[str]:
    ratio, alone, difference = found["ratio"], found["alone"], found["difference"]
    return [
        found["title"],
        f"{ratio['median']:.2f}",
        f"{ratio['low']:.2f}–{ratio['high']:.2f}",
        f"{alone['median']:.2f}" if alone else "",
        duration(found["seconds"]["median"]),
        f"{found['peak'] / 2**20:,.0f} MB",
        f"{found['peak_ratio']:.2f}",
        f"{found['grown'] / 2**20:,.0f} MB",
        "" if difference is None else f"{difference:.0e}",
    ]


def duration(seconds: float) -> str:
    """Seconds or milliseconds, with three digits that matter."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES), metavar="MODEL")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME")
    parser.add_argument("--rounds", type=int, help=f"rounds in each contest ({ROUNDS} if not given)")
    parser.add_argument("--clock", choices=record.CLOCKS, default="wall", help="cpu, on a machine that others use")
    parser.add_argument("--quick", action="store_true", help="few rounds and short slices: to see that it works")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--read", type=Path, help="tell the figures of this file again instead of running")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    return parser.parse_args()


def main() -> None:
    """Run (or read), keep, tell."""
    given = arguments()
    rounds, slice = (QUICK_ROUNDS, QUICK_SLICE) if given.quick else (ROUNDS, SLICE)
    pace = Pace(given.rounds or rounds, slice, given.clock)
    found = record.read(given.read) if given.read else run(given.models, given.contestants, pace)
    if given.json:
        record.write(given.json, found)
    print(report(found, given.markdown))


if __name__ == "__main__":
    main()
