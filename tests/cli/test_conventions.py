"""What any command line is expected to have: -h, -V, completion, `python -m`, and Ctrl-C without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wholegrain as library
from command import Command
from wholegrain.cli.command_table import ROWS

# Whoever started the tests in the background may have had Ctrl-C ignored.
PLANTED = """import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("name", ["", *(row.name for row in ROWS), "data init", "ledger show", "federation init"])
def test_every_command_has_short_help(wholegrain: Command, name: str) -> None:
    short, long = wholegrain(*name.split(), "-h"), wholegrain(*name.split(), "--help")
    assert (short.code, long.code) == (0, 0)
    assert "Usage: wholegrain" in short.out
    assert short.out == long.out


@pytest.mark.parametrize("name", ["run", "predict", "data init", "report"])
def test_arguments_are_explained(wholegrain: Command, name: str) -> None:
    """typer 0.20 loses their help to click 8.5."""
    arguments = wholegrain(*name.split(), "-h").out.partition("Arguments")[2].partition("Options")[0]
    for line in arguments.split("*")[1:]:
        assert len(line.partition("[required]")[0].split()) > 4


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version(wholegrain: Command, option: str) -> None:
    assert wholegrain(option).out == f"wholegrain {library.__version__}\n"


def test_a_group_alone_shows_its_help(wholegrain: Command) -> None:
    alone = wholegrain("data")
    assert alone.code == 2
    assert "describe" in alone.out + alone.err


def called(code: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_completion_lists_commands_and_can_be_installed(wholegrain: Command) -> None:
    done = called(
        ["-m", "wholegrain"], _WHOLEGRAIN_COMPLETE="complete_bash", COMP_WORDS="wholegrain da", COMP_CWORD="1"
    )
    assert done.stdout.split() == ["data"]
    assert "--install-completion" in wholegrain("-h").out


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_an_interrupt_during_an_import_leaves_no_traceback(tmp_path: Path, module: str) -> None:
    """A module of this name that presses Ctrl-C comes first on the path."""
    (tmp_path / f"{module}.py").write_text(PLANTED)
    done = called(["-m", "wholegrain", "plan", "none.toml"], PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
