"""From the command to the page: everything once at the smallest scale, on data that needs no files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from command import Command
from wholegrain_reproduction import experiment, recipes
from wholegrain_reproduction.claims import all_claims
from wholegrain_reproduction.data_choice import choose_data
from wholegrain_reproduction.experiment import Experiment, plan_trials
from wholegrain_reproduction.recipes import Kind
from wholegrain_reproduction.scales import Part, Scale

SMOKE = ("--scale", "smoke", "--data", "glyphs", "--data", "babble")


@pytest.mark.timeout(7200)
@pytest.mark.slow
def test_everything_runs_at_the_smallest_scale(wholegrain: Command, tmp_path: Path) -> None:
    """With prices as they are: on a coarse grid no noise meets ε = 0.5 for a group of sixteen."""
    pytest.importorskip("matplotlib", reason="glyphs draws typefaces of matplotlib: install wholegrain[data]")
    outcome = wholegrain("reproduce", "claims", *SMOKE, "--out", tmp_path, "--processes", "2")
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "smoke-glyphs-babble"
    page = (folder / "reproduction.md").read_text()
    assert page.count("not FEMNIST") > 1
    assert "Its figures and verdicts mean nothing" in page
    assert all(claim.says in page for claim in all_claims())
    assert "not measured here" not in page
    pictures = re.findall(r"\((figures/.*?\.svg)\)", page)
    assert len(pictures) == 11
    assert all((folder / picture).stat().st_size > 1000 for picture in pictures)


def request(what: Part, out: Path) -> Experiment:
    return Experiment(part=what, scale=Scale.SMOKE, data=choose_data(["glyphs", "babble"]), out=out)


def test_figures_ask_for_their_runs_alone(tmp_path: Path) -> None:
    keys = {what: {trial.key for trial in plan_trials(request(what, tmp_path))[1]} for what in Part}
    assert keys[Part.FIG2] == {f"{recipe}/local_group_dp-printed" for recipe in ("femnist", "shakespeare")}
    assert keys[Part.FIG2] < keys[Part.FIG1] < keys[Part.CLAIMS]
    assert {key.split("/")[0] for key in keys[Part.FIG3]} == {"distribution"}
    assert keys[Part.FIG3] < keys[Part.CLAIMS]


@pytest.mark.slow
def test_what_failed_is_said_and_the_page_is_written(wholegrain: Command, tmp_path: Path) -> None:
    own = tmp_path / "recipes"
    own.mkdir()
    for name in ("femnist", "shakespeare", "group_sizes"):
        (own / f"{name}.toml").write_text((recipes.recipes_folder() / f"{name}.toml").read_text())
    for name in ("femnist", "shakespeare"):
        text = (own / f"{name}.toml").read_text()
        text = re.sub(r"(silos\.count|silos = \{ count) = 2\b", r"\1 = 1000000", text)
        (own / f"{name}.toml").write_text(text)
    outcome = wholegrain("reproduce", "fig2", *SMOKE, "--out", tmp_path / "out", "--recipes", own, "--processes", "1")
    assert outcome.code == 1
    assert "2/2" in outcome.err
    assert "silos.count = 1000000" in outcome.err
    page = (tmp_path / "out" / "smoke-glyphs-babble" / "reproduction.md").read_text()
    assert "## Runs that failed" in page
    assert "fig2-geometry" in page  # what needs no run is there


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig4",), "fig4"),
        (("fig1", "--scale", "tiny"), "tiny"),
        (("fig1", "--data", "femnis"), "did you mean 'femnist'"),
        (("fig1", "--data", "glyphs", "--data", "babble", "--processes", "0"), "--processes must be"),
        (("fig1", "--data", "glyphs", "--data", "babble", "--recipes", "/nowhere"), "There is no recipe"),
        (("fig2", "--data", "glyphs", "--data", "babble", "--out", "/dev/null/x"), "cannot be written"),
    ],
)
def test_bad_input_gets_a_sentence(wholegrain: Command, arguments: tuple[str, ...], message: str) -> None:
    outcome = wholegrain("reproduce", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_ctrl_c_says_how_to_go_on(wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run_all", interrupted)
    outcome = wholegrain("reproduce", "fig2", *SMOKE, "--out", tmp_path)
    assert outcome.code == 130
    assert "The same command goes on" in outcome.err


def test_claims_name_recipes_and_kinds_that_exist() -> None:
    assert {claim.recipe for claim in all_claims()} == set(experiment.RECIPES[Part.CLAIMS])
    assert set(Kind) == {kind for name in experiment.RECIPES[Part.CLAIMS] for kind in recipes.load_recipe(name).runs}


def test_the_command_is_listed_without_importing_what_it_runs() -> None:
    code = "import sys, wholegrain_reproduction.command; print({'torch', 'scipy', 'altair'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
