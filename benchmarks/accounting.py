"""What calibration costs: one silo, sixteen like ones, sixteen different ones with K = 20.

Run: make bench
"""

import time

from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, make_plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.accountants import PldAccountant


def calibrate(sizes: list[int]) -> tuple[float, float]:
    """Noise multiplier and seconds for local_item_dp at ε = 4 over silos of these sizes."""
    silos = tuple(
        SiloFacts(name=f"silo-{i}", items=n, subjects=n // 9, items_per_subject=20) for i, n in enumerate(sizes)
    )
    horizon = Horizon(silos=tuple(s.name for s in silos), rounds=100, steps=50)
    goal = Goal(epsilon=4.0, delta=1e-5, accountant=PldAccountant())
    started = time.perf_counter()
    plan = make_plan("local_item_dp", PolicySettings(batch_size=512), Federation(silos=silos), horizon, goal)
    return plan.rows[0][0].noise.multiplier, time.perf_counter() - started  # type: ignore[union-attr]


def main() -> None:
    """Print one line per case."""
    different = [25_000 + 1_000 * number for number in range(16)]
    for name, sizes in (("one silo", [25_375]), ("16 like silos", [25_375] * 16), ("16 different silos", different)):
        noise, seconds = calibrate(sizes)
        print(f"{name:20} noise multiplier {noise:8.3f}   {seconds:6.2f} s")


if __name__ == "__main__":
    main()
