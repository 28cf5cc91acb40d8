"""Doctests in docstrings are shown as code: Markdown would take their `>>>` for quotations."""

import re
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor


class DoctestBlocks(Preprocessor):
    """Puts a fence around every paragraph that begins with `>>>`."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines with fences; what stands between fences already is left alone."""
        found: list[str] = []
        inside = fenced = False
        for line in lines:
            if re.match(r"\s*```", line) and not inside:
                fenced = not fenced
            if not fenced and not inside and line.lstrip().startswith(">>> "):
                inside = True
                found += ["", "```pycon"]
            if inside and not line.strip():
                inside = False
                found.append("```")
            found.append(line)
        return [*found, "```"] if inside else found


class DoctestExtension(Extension):
    """Runs before other extensions look for fences."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the preprocessor."""
        md.preprocessors.register(DoctestBlocks(md), "doctest_blocks", 40)


def on_config(config: Any) -> Any:
    """Add the extension to every page, and so to every docstring."""
    config.markdown_extensions.append(DoctestExtension())
    return config
