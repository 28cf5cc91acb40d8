"""The log of a server or a silo: one line for each record, whoever's words are in it."""

import logging

from wholegrain import _check

MOST = 2000
"""Characters of one line."""

MOST_LINES = 100
"""Lines of a traceback, which ends with what the error says."""


class LineFormatter(logging.Formatter):
    """Nobody's words begin a line of their own, are longer than others, or steer a terminal.

    Most words are cut where they come in (`_check.quoted`). This catches what other packages log, and tracebacks, whose
    lines are indented so that none of them passes for a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record, and its traceback below."""
        record.message = _check.quoted(record.getMessage(), MOST)
        record.asctime = self.formatTime(record, self.datefmt)
        lines = [self.formatMessage(record)]
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            lines += [f"    {_check.quoted(line)}" for line in trace[:MOST_LINES]]
        return "\n".join(lines)


def log_in_lines() -> None:
    """Send all logs to the terminal, in such lines; Flower's, too, once it is imported."""
    logging.getLogger("flwr").handlers.clear()  # it would print them a second time, as they are
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
