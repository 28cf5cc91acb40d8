"""What FEMNIST's geometry costs to make: 3,500 writers of 145 images, in seconds and in memory at the peak.

Run: python benchmarks/glyphs.py
"""

import resource
import time

from wholegrain.data.glyphs import glyphs


def main() -> None:
    before = _peak()
    started = time.perf_counter()
    made = glyphs()
    seconds = time.perf_counter() - started
    print(f"{made.data.items:,} images of {made.data.subject_count:,} writers in {seconds:.1f} s")
    print(
        f"peak memory {_peak():.2f} GB, of which {before:.2f} GB before and {made.data.inputs.nbytes / 1e9:.2f} images"
    )


def _peak() -> float:
    """Resident memory at its highest, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
