"""What it takes to read LEAF's files: a FEMNIST of 3,500 writers with 145 images each, first from JSON, then kept.

The files have LEAF's format and geometry; the images are random. Each load is a new process, whose peak memory
(resource.getrusage) counts everything, wholegrain and torch included.

Run: python benchmarks/leaf_loading.py [writers]
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WRITERS, IMAGES, FILES = 3_500, 145, 35
POOL = 2_000


def images(generator: np.random.Generator) -> list[str]:
    """Images as LEAF writes them: mostly blank (1.0), the rest bytes divided by 255."""
    shades = [repr(shade / 255) for shade in range(256)]
    ink = generator.random((POOL, 784)) < 0.2
    pixels = np.where(ink, generator.integers(256, size=(POOL, 784)), 255)
    return ["[" + ", ".join([shades[pixel] for pixel in image]) + "]" for image in pixels]


def write(folder: Path, writers: int) -> int:
    """The files, writer by writer; returns their size in bytes."""
    generator = np.random.default_rng(0)
    pool = images(generator)
    for number, names in enumerate(np.array_split([f"f{writer:04d}_00" for writer in range(writers)], FILES)):
        listed = {"users": list(names), "num_samples": [IMAGES] * len(names)}
        with (folder / f"all_data_{number}.json").open("w") as file:
            file.write(json.dumps(listed)[:-1] + ', "user_data": {')
            for place, name in enumerate(names):
                x = ", ".join(pool[image] for image in generator.integers(POOL, size=IMAGES))
                y = json.dumps(generator.integers(62, size=IMAGES).tolist())
                file.write(("" if place == 0 else ", ") + f'"{name}": {{"x": [{x}], "y": {y}}}')
            file.write("}}")
    return sum(path.stat().st_size for path in folder.iterdir())


def load(folder: str) -> None:
    """In a process of its own: load, and print seconds, peak memory and what was read."""
    from wholegrain.data.femnist import femnist

    started, busy = time.perf_counter(), time.process_time()
    data = femnist(path=folder).data
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, busy, peak, data.items, data.subject_count]))


def measure(folder: Path, cache: Path) -> float:
    """Load in a child and print its line; returns seconds."""
    command = [sys.executable, __file__, "--load", str(folder)]
    environment = os.environ | {"WHOLEGRAIN_CACHE": str(cache)}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    seconds, busy, peak, items, subjects = json.loads(output)
    taken = f"{seconds:.2f} s ({busy:.2f} s of one core)"
    print(f"{items:,} items of {subjects:,} subjects in {taken}, peak memory {peak:,.0f} MiB", flush=True)
    return float(seconds)


def main() -> None:
    """Write, load twice, and print how much faster the second time is."""
    writers = int(sys.argv[1]) if len(sys.argv) > 1 else WRITERS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "femnist"
        folder.mkdir()
        size = write(folder, writers)
        print(f"{FILES} files, {size / 2**30:.2f} GiB of JSON", flush=True)
        first, second = (measure(folder, Path(name) / "cache") for _ in range(2))
        print(f"the second load is {first / second:.0f} times as fast")


if __name__ == "__main__":
    if "--load" in sys.argv:
        load(sys.argv[-1])
    else:
        main()
