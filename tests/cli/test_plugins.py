"""Commands of other packages: found by their entry points, loaded when needed, and unable to break the rest."""

import subprocess
import sys
from pathlib import Path

import pytest

from command import Command
from plugin_packages import write_package

SOURCE = '''
import typer

def greet(name: str, loud: bool = False) -> None:
    """Greet somebody."""
    print(f"Hello {name}" + "!" * loud)

tools = typer.Typer(help="Two tools.")

@tools.command()
def saw() -> None:
    """Saw."""
    print("sawn")

@tools.command()
def drill() -> None:
    """Drill."""
'''


@pytest.fixture
def greeter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    commands = {"greet": "greeter:greet", "tools": "greeter:tools", "plan": "greeter:greet"}
    write_package(folder, "greeter", commands, {"greeter": SOURCE})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "greeter", raising=False)
    return folder


@pytest.mark.usefixtures("greeter")
def test_a_function_becomes_a_command_with_its_options_and_help(wholegrain: Command) -> None:
    assert wholegrain("greet", "Ada", "--loud").out == "Hello Ada!\n"
    assert "Greet somebody." in wholegrain("greet", "--help").out
    listed = wholegrain("--help").out
    assert "Greet somebody." in listed
    assert "Two tools." in listed
    assert wholegrain("greet", "--quiet", "Ada").code == 2


@pytest.mark.usefixtures("greeter")
def test_an_app_becomes_a_group_of_commands(wholegrain: Command) -> None:
    assert wholegrain("tools", "saw").out == "sawn\n"


@pytest.mark.usefixtures("greeter")
def test_commands_of_wholegrains_own_cannot_be_replaced(wholegrain: Command) -> None:
    assert "Greet" not in wholegrain("plan", "--help").out


@pytest.mark.usefixtures("greeter")
def test_a_plugin_is_not_imported_for_other_commands(wholegrain: Command) -> None:
    assert wholegrain("--version").code == 0
    assert wholegrain("plan", "nowhere.toml").code == 2
    assert "greeter" not in sys.modules
    wholegrain("greet", "Ada")
    assert "greeter" in sys.modules


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("broken:run", "import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("broken:run", "run = ", "SyntaxError: invalid syntax"),
        ("broken:run", "raise RuntimeError('first line\\nsecond line')", "RuntimeError: first line"),
        ("broken:run", "raise SystemExit('gone')", "SystemExit: gone"),
        ("broken:run", "", "AttributeError: module 'broken' has no attribute 'run'"),
        ("broken:run", "run = 3", "TypeError: a function or a typer.Typer is needed, not int"),
        ("broken:run", "def run(what: object) -> None: pass", "RuntimeError: Type not yet supported: <class 'object'>"),
        ("not there", "", "cannot be loaded from 'not there'"),
    ],
)
def test_a_broken_plugin_is_one_sentence_and_nothing_else_breaks(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, source: str, reason: str
) -> None:
    write_package(tmp_path / "site", "unlucky", {"broken": value}, {"broken": source})
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    for arguments in (("broken",), ("broken", "--help"), ("broken", "x", "--y", "3")):
        outcome = wholegrain(*arguments)
        assert outcome.code == 2
        assert outcome.err.startswith("error: The command 'broken' of the package 'unlucky' cannot be loaded")
        assert reason in outcome.err
        assert outcome.err.count("\n") == 1
    listed = wholegrain("--help")
    assert listed.code == 0
    assert "Cannot be loaded" in listed.out
    assert wholegrain("--version").code == 0


ALONE = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "wholegrain_reproduction":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
import wholegrain
names = [module.name for module in pkgutil.walk_packages(wholegrain.__path__, "wholegrain.")]
for name in names:
    if name != "wholegrain.__main__":
        importlib.import_module(name)
print(len(names))
"""


@pytest.mark.slow
def test_the_library_does_without_the_evaluation_of_the_paper() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
