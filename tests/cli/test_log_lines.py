"""What a server's and a silo's log lines look like, whoever's words are in them."""

import logging
import sys

from wholegrain.cli.log_lines import MOST, LineFormatter

FORGED = "x\n2030-01-01 wholegrain.silo: all is well\x1b[2J\u2028" + "y" * 60_000


def lines(message: str, *, failed: bool = False) -> list[str]:
    try:
        raise ValueError(message)
    except ValueError:
        trouble = sys.exc_info() if failed else None
    record = logging.LogRecord("other", logging.ERROR, "f.py", 1, "it says %s", (message,), trouble)
    return LineFormatter("%(name)s: %(message)s").format(record).splitlines()


def test_a_record_is_one_short_line_without_control_characters() -> None:
    (line,) = lines(FORGED)
    assert line.startswith("other: it says x 2030-01-01")
    assert line.isprintable()
    assert len(line) < MOST + 20


def test_no_line_of_a_traceback_passes_for_a_record() -> None:
    _, *others = lines(FORGED, failed=True)
    assert others
    assert all(line.startswith("    ") and line.isprintable() and len(line) < 400 for line in others)
    assert any("2030-01-01 wholegrain.silo: all is well" in line for line in others)
    assert len(lines("z\n" * 10**5, failed=True)) < 200
