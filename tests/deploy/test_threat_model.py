"""The threat model names tests: they are there."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "threat-model.md"


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_threat_is_met_by_a_test_that_exists() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| who")]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`([a-z_/]+\.py)(?:::(test_\w+))?`", row)
        assert named, row
        for file, function in named:
            path = TESTS / file
            assert path.exists(), file
            assert not function or function in functions(path), (file, function)
