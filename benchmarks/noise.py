"""What noise costs: seeded, secure and torch's own, for a million values and beside a clipped sum of the LEAF CNN.

Run: taskset --cpu-list 0 python benchmarks/noise.py --clock cpu

All take turns in one process with one thread. In each round a source's time is divided by that of the seeded one, and
by that of the clipped sum (per item) that the noise is for.

Opacus' secure mode is not timed: where torch draws one normal value, it draws four from a random device and adds them
up [Holohan and Braghin 2021]; it has neither grid nor margin.
"""

import argparse
from collections.abc import Callable

import torch

import record
from contestants import CONTESTANTS
from settings import CLIP_NORM, NOISE_MULTIPLIER
from wholegrain.silo.noise import NoiseStream, SeededNoise
from wholegrain.silo.secure_noise import SecureNoise
from workloads import CASES, SEED

ROUNDS, QUICK_ROUNDS = 25, 3
CASE = "cnn128"


class Plain:
    """torch's normal values from its global generator, in a vector of their own."""

    def add_to(self, total: torch.Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        total.add_(torch.randn_like(total), alpha=multiplier * clip_norm)


SOURCES: dict[str, NoiseStream] = {
    "seeded": SeededNoise(SEED).stream(0, "silo"),
    "seeded, in C": SeededNoise(SEED, in_c=True).stream(0, "silo"),
    "secure": SecureNoise().stream(0, "silo"),
    "torch.randn": Plain(),
}


def run(rounds: int, clock: Callable[[], float]) -> tuple[int, dict[str, list[float]]]:
    """Values in the sum, and everyone's seconds by round; the first round only warms up."""
    ours = CONTESTANTS["ours"].build(CASES[CASE].workload())
    seconds: dict[str, list[float]] = {name: [] for name in ("sum", *SOURCES)}
    for _ in range(rounds + 1):
        started = clock()
        total = ours.gradient()
        seconds["sum"].append(clock() - started)
        for name, source in SOURCES.items():
            started = clock()
            source.add_to(total, NOISE_MULTIPLIER, CLIP_NORM)
            seconds[name].append(clock() - started)
    return total.numel(), {name: found[1:] for name, found in seconds.items()}


def row(name: str, values: int, seconds: dict[str, list[float]]) -> list[str]:
    """One source: per million values, beside the seeded one, beside the sum."""
    ratio = record.spread([own / base for own, base in zip(seconds[name], seconds["seeded"], strict=True)])
    share = record.spread([own / base for own, base in zip(seconds[name], seconds["sum"], strict=True)])
    per_million = record.spread(seconds[name])["median"] / values * 1e9
    quartiles = f"{ratio['low']:.2f}–{ratio['high']:.2f}"
    return [name, f"{per_million:.2f} ms", f"{ratio['median']:.2f}", quartiles, f"{share['median']:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clock", choices=record.CLOCKS, default="wall", help="cpu, on a machine that others use")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it works")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    given = parser.parse_args()
    torch.set_num_threads(1)
    values, seconds = run(QUICK_ROUNDS if given.quick else ROUNDS, record.CLOCKS[given.clock])
    print(f"{record.told(record.circumstances(given.clock))}\n\n{CASES[CASE].title}: {values:,} values\n")
    heads = ["", "a million values", "÷ seeded", "quartiles", "÷ sum"]
    print(record.table(heads, [row(name, values, seconds) for name in SOURCES], given.markdown))


if __name__ == "__main__":
    main()
