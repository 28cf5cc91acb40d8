"""What every benchmark writes down besides its figures: machine, versions, commit. No names, no paths."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from wholegrain.errors import WholegrainError

ROOT = Path(__file__).resolve().parent.parent

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""With one thread per process they agree on an idle core; `cpu` does not see what others take of a busy one."""


def add_names(
    parser: argparse.ArgumentParser, option: str, names: Iterable[str], default: Sequence[str] | None = None
) -> None:
    """An option that takes some of these names, which may hold commas: the help lists them line by line."""
    known = list(names)

    def one(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"'{text}' is not one of the names that --help lists")
        return text

    parser.add_argument(option, nargs="+", type=one, metavar="NAME", default=default, help="some of the names below")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n  ".join([f"names of {option}, each in quotation marks:", *dict.fromkeys(known)])


def start(main: Callable[[], None]) -> None:
    """Run a script; what is refused on purpose is one sentence on standard error, and exit code 2."""
    try:
        main()
    except WholegrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def say_if_done(before: int, after: int, option: str = "--out") -> None:
    """A run that has kept no further row says why."""
    if before == after:
        print(f"{after} rows are on record; nothing to do ({option} FILE starts anew)")


def circumstances(clock: str) -> dict[str, Any]:
    """Machine, versions, commit, and the clock that was read."""
    packages = {name: _version(name) for name in ("torch", "numpy", "opacus", "flwr")}
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "packages": {name: found for name, found in packages.items() if found},
        "commit": _commit(),
        "clock": clock,
    }


def told(circumstances: dict[str, Any]) -> str:
    """The circumstances in one line."""
    versions = ", ".join(f"{name} {number}" for name, number in circumstances["packages"].items())
    memory = circumstances["memory"] / 2**30
    return (
        f"{circumstances['cpu']}, {memory:.0f} GB, {circumstances['cores']} core(s) used, one thread per process;"
        f" Python {circumstances['python']}, {versions}; commit {circumstances['commit']};"
        f" {circumstances['clock']} clock."
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = np.percentile(np.asarray(values), [25, 50, 75])
    return {"median": float(middle), "low": float(low), "high": float(high)}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], markdown: bool) -> str:
    """A table for people: in Markdown, or in columns for a terminal."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    if markdown:
        lines.insert(1, ["---"] + ["---:"] * (len(heads) - 1))
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    first, *others = widths
    return "\n".join(
        "  ".join([line[0].ljust(first), *(cell.rjust(w) for cell, w in zip(line[1:], others, strict=True))])
        for line in lines
    )


def write(path: Path, found: dict[str, Any]) -> None:
    """Keep the figures as JSON."""
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Figures of an earlier run."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].split(":", 1)[1].strip() if names else platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")
