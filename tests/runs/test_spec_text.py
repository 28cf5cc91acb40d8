"""`plan --optimise --write`: a spec that can be run as it is, and says why."""

from pathlib import Path

import pytest

from command import Command
from wholegrain.cli import run_commands
from wholegrain.runs.optimise_spec import Choice
from wholegrain.runs.spec import load

TABLE = "patient,clinic,age,since,sex,ill\n" + "".join(
    f"p{i % 40},{'ns'[i % 2]},{20 + i % 60},2020-01-{1 + i % 28:02},{'fm'[i % 3 % 2]},{('no', 'yes')[i % 60 > 30]}\n"
    for i in range(160)
)
SPEC = """\
[data.table]
path = "visits.csv"
subject = "patient"
silo = "clinic"
target = { column = "ill", classes = ["no", "yes"] }
missing_values = ["?"]
[data.table.features]
age = { low = 0, high = 110 }
since = { low = 2015-01-01, high = 2024-12-31 }
sex = { categories = ["f", "m"], missing = true }
[data.table.recode]
sex = { "w" = "f" }
[silos]
items_per_subject = 4
[privacy]
epsilon = 4.0
delta = 1e-4
"""
SIZES = """
[silos.sizes]
n = { items = 80, subjects = 20 }
s = { items = 80, subjects = 20 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "visits.csv").write_text(TABLE)
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.parametrize("more", ["", "[rounds]\nlearning_rate = 1.0\n"])
def test_the_file_is_the_chosen_spec_with_its_reasons(
    wholegrain: Command, folder: Path, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Choice] = []
    weigh = run_commands.find_best
    monkeypatch.setattr(run_commands, "find_best", lambda spec: found.append(weigh(spec)) or found[-1])
    (folder / "spec.toml").write_text(SPEC + more)
    (folder / "inner").mkdir()
    better = folder / "inner" / "better.toml"
    done = wholegrain("plan", folder / "spec.toml", "--optimise", "--write", better)
    assert done.code == 0, done.err
    (chosen,) = found
    assert load(better) == chosen.spec
    text = better.read_text()
    assert "Sizes are counted in the data" in text
    for why in chosen.reasons.values():
        assert f"  # {why}" in text


@pytest.mark.usefixtures("coarse_prices")
def test_declared_sizes_are_enough(wholegrain: Command, folder: Path) -> None:
    (folder / "visits.csv").unlink()
    (folder / "spec.toml").write_text(SPEC + SIZES)
    done = wholegrain("plan", folder / "spec.toml", "--optimise", "--write", folder / "better.toml")
    assert done.code == 0, done.err
    assert "Sizes are public: declared" in (folder / "better.toml").read_text()


def test_what_is_there_stays(wholegrain: Command, folder: Path) -> None:
    (folder / "mine.toml").write_text("mine")
    for name, words in (("mine.toml", "already exists"), ("better.json", ".toml")):
        done = wholegrain("plan", folder / "spec.toml", "--optimise", "--write", folder / name)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert words in done.err
    assert (folder / "mine.toml").read_text() == "mine"
    done = wholegrain("plan", folder / "spec.toml", "--write", folder / "better.toml")
    assert "--optimise" in done.err
    assert not (folder / "better.toml").exists()
