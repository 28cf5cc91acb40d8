"""What calibration costs: one silo, sixteen like ones, sixteen different ones with K = 20; and again from the store.

Run: make bench
"""

import tempfile
import time
from pathlib import Path

from wholegrain.policies.catalog import Settings
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, make_plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.privacy.accountants import Accountant, PldAccountant
from wholegrain.privacy.memory import RememberingAccountant


def calibrate(sizes: list[int], accountant: Accountant) -> tuple[float, float]:
    """Noise multiplier and seconds for local_item_dp at ε = 4 over silos of these sizes."""
    silos = tuple(
        SiloFacts(name=f"silo-{i}", items=n, subjects=n // 9, items_per_subject=20) for i, n in enumerate(sizes)
    )
    horizon = Horizon(silos=tuple(s.name for s in silos), rounds=100, steps=50)
    goal = Goal(epsilon=4.0, delta=1e-5, accountant=accountant)
    started = time.perf_counter()
    plan = make_plan("local_item_dp", Settings(batch_size=512), Federation(silos=silos), horizon, goal)
    return plan.rows[0][0].noise.multiplier, time.perf_counter() - started  # type: ignore[union-attr]


def main() -> None:
    """Print one line per case."""
    different = [25_000 + 1_000 * number for number in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        store = RememberingAccountant(PldAccountant(), Path(folder) / "answers.sqlite")
        cases: list[tuple[str, list[int], Accountant]] = [
            ("one silo", [25_375], PldAccountant()),
            ("16 like silos", [25_375] * 16, PldAccountant()),
            ("16 different silos", different, store),
            ("16 different silos, stored", different, store),
        ]
        for name, sizes, accountant in cases:
            noise, seconds = calibrate(sizes, accountant)
            print(f"{name:28} noise multiplier {noise:8.3f}   {seconds:6.2f} s")


if __name__ == "__main__":
    main()
