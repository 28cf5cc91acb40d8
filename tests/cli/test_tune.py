"""`wholegrain tune` as somebody types it."""

import json
from pathlib import Path

import pytest

from command import Command
from small_runs import write_spec

pytestmark = pytest.mark.usefixtures("coarse_prices")

SPACE = "rounds.learning_rate = [0.1, 1.0]\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A spec that says nothing of scores, and a space."""
    spec = write_spec(tmp_path / "specs")
    spec.write_text(spec.read_text().replace("noise_multiplier = 6.0\n", ""))
    space = tmp_path / "space.toml"
    space.write_text(SPACE)
    return spec, space


def test_a_tuning_tells_its_choice_and_one_proved_epsilon(
    wholegrain: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    spec, space = files
    law, out, picture = "negative_binomial(mean=2, shape=1)", tmp_path / "out", tmp_path / "trials.svg"
    done = wholegrain(
        "tune", spec, "--space", space, "--trials", law, "--out", out, "--processes", 1, "--picture", picture, "--json"
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["settings"]["rounds.learning_rate"] in (0.1, 1.0)
    (subject,) = [each for each in told["guarantees"] if each["unit"] == "subject"]
    assert subject["standing"] == "PROVED"
    assert subject["epsilon"] <= 4.0
    assert told["folder"] == str(out)
    assert picture.read_text().startswith("<svg")
    assert json.loads((out / "origins.json").read_text())["rounds.learning_rate"] == "paid"


@pytest.mark.parametrize(
    ("space", "trials", "why"),
    [
        (SPACE, "ten", "no law of a number of trials"),
        ("privacy.epsilon = [1, 2]\n", "poisson(3)", "not for a search to choose"),
        ("", "poisson(3)", "nothing to choose from"),
    ],
)
def test_a_slip_is_one_sentence(
    wholegrain: Command, files: tuple[Path, Path], tmp_path: Path, space: str, trials: str, why: str
) -> None:
    spec, path = files
    path.write_text(space)
    done = wholegrain("tune", spec, "--space", path, "--trials", trials, "--out", tmp_path / "out")
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.tuning").exists()


def test_a_release_has_no_picture_of_its_trials(wholegrain: Command, files: tuple[Path, Path], tmp_path: Path) -> None:
    spec, space = files
    asked = ("--set", "privacy.noise=secure", "--picture", tmp_path / "p.svg")
    done = wholegrain("tune", spec, "--space", space, *asked)
    assert done.code == 2
    assert "nothing of the trials is shown" in done.err
