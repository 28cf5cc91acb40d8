"""What the site makes of its sources.

Doctests in docstrings are shown as code: Markdown would take their `>>>` for quotations. Notebooks that were run
(docs/tutorials/*.ipynb) become pages, with what they printed, and so does the changelog. Every page names its version.
"""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

IN_LINE = r"(?<!<pre>)(?<!<pre><span></span>)<code>([^<]*_[^<]*)</code>"
NO_HOST = "These pages are of the clone that they were built from, which has no public host to link to."


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
    """Add the extension to every page, and so to every docstring; say which version the pages are of."""
    config.markdown_extensions.append(DoctestExtension())
    config.site_name = f"wholegrain {version('wholegrain')}"
    config.copyright = f"wholegrain {version('wholegrain')}. Apache-2.0. {NO_HOST}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook, and the changelog, whose links begin at the clone's root."""
    changes = Path(config.docs_dir).parent.joinpath("CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changes.replace("](docs/", "](")))
    for path in sorted(Path(config.docs_dir).glob("tutorials/*.ipynb")):
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to notebooks, which a clone can follow, lead to their pages; downloads stay as they are."""
    return re.sub(r"\.ipynb\)(?!\{)", ".md)", markdown)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its words, its code, and under the code what it printed."""
    first, *others = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [
        "---\nhide: [toc]\n---",
        "".join(first["source"]),
        f"[Notebook with its output]({path.name}){{ download }}",
    ]
    for cell in others:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [f"```text {{ .output }}\n{_text(output).rstrip()}\n```" for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _text(output: dict[str, Any]) -> str:
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"])


def on_post_page(output: str, **_: Any) -> str:
    """Name the search dialog, which the theme forgets; let names break after underscores; let figures be opened."""
    named = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    whole = re.sub(IN_LINE, _breakable, named)
    # A figure is drawn for a desk: on a phone, a touch opens it alone, to be enlarged.
    return re.sub(r'<img alt="[^"]*" src="([^"]+\.svg)" ?/?>', r'<a class="figure" href="\1">\g<0></a>', whole)


def _breakable(code: re.Match[str]) -> str:
    """On a phone, `local_item_dp` in a table breaks as local_item_/dp and not in the middle of a word."""
    return f"<code>{code[1].replace('_', '_<wbr>')}</code>"
