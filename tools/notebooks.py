"""Play the notebooks of examples/ and keep them, with what they print, in docs/tutorials/ as Jupyter notebooks.

`python tools/notebooks.py` plays all of them, `python tools/notebooks.py table` one. A notebook is a Python file with
cells (`# %%`). The site shows what was kept, and tests/test_examples.py compares it with what a run prints.
"""

import ast
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLES, TUTORIALS = ROOT / "examples", ROOT / "docs" / "tutorials"


@dataclass(frozen=True)
class Cell:
    """Words, or code; with what the code printed and what its last line is, if it was played."""

    kind: str
    source: str
    printed: str = ""
    value: str | None = None


def names() -> list[str]:
    """The notebooks of examples/."""
    return sorted(path.stem for path in EXAMPLES.glob("*.py") if "# %%" in path.read_text("utf-8"))


def read_cells(name: str) -> Iterator[Cell]:
    """The cells of a percent script."""
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    for kind, body in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n)*)", text, flags=re.M):
        if "markdown" in kind:
            yield Cell("markdown", re.sub(r"^# ?", "", body.strip(), flags=re.M))
        else:
            yield Cell("code", body.strip())


def play(name: str, found: dict[str, Any]) -> Iterator[Cell]:
    """The cells of a notebook, played one after the other with the names in `found`."""
    for cell in read_cells(name):
        if cell.kind == "markdown":
            yield cell
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            value = _run(cell.source, found, name)
        yield Cell("code", cell.source, out.getvalue(), None if value is None else repr(value))


def _run(source: str, found: dict[str, Any], name: str) -> Any:
    """What the last line is, if it is an expression, as a notebook shows it."""
    tree = ast.parse(source, f"{name}.py")
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"{name}.py", "exec"), found)
    return None if last is None else eval(compile(ast.Expression(last.value), f"{name}.py", "eval"), found)


def as_notebook(cells: list[Cell]) -> str:
    """The cells as Jupyter keeps them (nbformat 4.5)."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    tree = {
        "cells": [_as_json(number, cell) for number, cell in enumerate(cells)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"


def _as_json(number: int, cell: Cell) -> dict[str, Any]:
    common = {"id": f"cell-{number}", "metadata": {}, "source": cell.source.splitlines(keepends=True)}
    if cell.kind == "markdown":
        return {"cell_type": "markdown", **common}
    outputs: list[dict[str, Any]] = []
    if cell.printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": cell.printed.splitlines(keepends=True)})
    if cell.value is not None:
        shown = {"text/plain": cell.value.splitlines(keepends=True)}
        outputs.append({"data": shown, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return {"cell_type": "code", "execution_count": number, **common, "outputs": outputs}


def main() -> None:
    """Play what is named, or all, and keep it."""
    TUTORIALS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or names():
        found: dict[str, Any] = {"__name__": "__main__"}
        (TUTORIALS / f"{name}.ipynb").write_text(as_notebook(list(play(name, found))), encoding="utf-8")
        print(f"docs/tutorials/{name}.ipynb")


if __name__ == "__main__":
    main()
