"""benchmarks/doors.py: what it measures stands beside its target, and every loop is one that a user could write."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import door_loops  # noqa: E402
import doors  # noqa: E402


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["doors.py", *arguments])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # of the tests' process
    doors.main()


@pytest.mark.slow
def test_loops_take_turns_and_are_told_beside_their_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    call(monkeypatch, *"--workloads logistic --contestants subject --steps 7 --rounds 2 --json".split(), str(kept))
    (found,) = json.loads(kept.read_text())["found"]
    assert list(found["loops"]) == ["plain", "subject"]
    assert found["skipped"] == {}
    assert all(len(each["each"]) == 2 for each in found["loops"].values())
    assert found["loops"]["subject"]["epsilon"] > 0
    shown = capsys.readouterr().out
    assert " 1.5 " in next(line for line in shown.splitlines() if line.startswith("wholegrain, per subject"))


def test_a_profile_has_all_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, *"--profile --workloads logistic --steps 3 --json".split(), str(tmp_path / "kept"))
    found = json.loads((tmp_path / "kept").read_text())["found"]
    assert list(found) == ["Logistic, 18 → 2, ledger in memory", "Logistic, 18 → 2, ledger in file"]
    for parts in found.values():
        assert all(parts[part] > 0 for part in doors.PARTS)
        assert sum(parts[part] for part in doors.PARTS) == pytest.approx(parts["step"])


def test_ratios_are_medians_of_turns_beside_plain_torch_and_the_better_of_opacus_modes() -> None:
    each = {"plain": [1.0, 2.0], "item": [2.0, 4.0], "opacus-hooks": [4.0, 16.0], "opacus-ghost": [8.0, 8.0]}
    loops = {name: {"each": seconds, "cold": 5.0, "warm": 4.0} for name, seconds in each.items()}
    doors.compare(loops)
    ours = loops["item"]
    assert (ours["ratio"]["median"], ours["beside_opacus"]["median"]) == (2.0, 0.5)
    assert (ours["cold_beyond"], ours["warm_beyond"]) == (2.0, 1.0)


def test_a_figure_says_whether_it_keeps_to_its_target() -> None:
    shown = [doors.beside_target(value, 1.3) for value in (1.3, 1.31)]
    assert shown == ["1.30 ≤ 1.3", "1.31 > 1.3"]
    assert doors.beside_target(2.0, None, " s") == "2.00 s"


@pytest.mark.parametrize("arguments", ["--rounds 0", "--steps 0", "--workloads tables", "--contestants jax"])
def test_what_cannot_be_measured_is_refused(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, *arguments.split())
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.filterwarnings("ignore")  # Opacus warns of its own hooks
def test_private_loops_spend_the_same() -> None:
    """Sampling and noise are the same, so that a step is worth the same privacy."""
    spent = []
    for name in ("item", "subject", "opacus-hooks"):
        if name.startswith("opacus"):
            pytest.importorskip("opacus")
        loop = door_loops.LOOPS[name](door_loops.WORKLOADS["logistic"], 3)
        for _, _ in zip(range(3), loop.steps(), strict=False):
            pass
        spent.append(loop.epsilon())
    assert spent == pytest.approx([spent[0]] * 3, rel=0.02)
