"""Small tables for notebooks; every value is escaped, so that no name of a column or silo is taken for HTML."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, heads: Sequence[object], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A titled table, with a note below it.

    >>> html_table("<silos>", ["name"], [["a & b"]])
    '<div><b>&lt;silos&gt;</b><table><tr><th>name</th></tr><tr><td>a &amp; b</td></tr></table></div>'
    """
    head = f"<tr>{''.join(f'<th>{escape(str(cell))}</th>' for cell in heads)}</tr>" if heads else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    below = f"<small>{escape(note)}</small>" if note else ""
    return f"<div><b>{escape(title)}</b><table>{head}{body}</table>{below}</div>"
