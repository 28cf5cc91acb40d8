"""Benchmarks are imported by their bare names beside tests: no test may mean one of its own folders by such a name."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
BENCHMARKS = {path.stem for path in (TESTS.parent / "benchmarks").glob("*.py")}
FOLDERS = {path.name for path in TESTS.iterdir() if path.is_dir()}


def imported(path: Path) -> set[str]:
    """The packages that a file takes modules from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    found += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    return {name.partition(".")[0] for name in found if "." in name}


def test_tests_are_collected_in_any_order_of_folders() -> None:
    assert {"audit"} <= BENCHMARKS & FOLDERS, "a name that exists twice, so that something is tested"
    hidden = {str(path): imported(path) & BENCHMARKS & FOLDERS for path in TESTS.rglob("*.py")}
    assert {path: names for path, names in hidden.items() if names} == {}
