"""Which line of somebody's code an operation comes from."""

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

TORCH = str(Path(torch.__file__).parent)
HERE = str(Path(__file__).parent)
PYTHON = str(Path(os.__file__).parent)


class Lines:
    """Forward, the line that calls; backward, the line whose operation it is the derivative of."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}

    def find(self) -> str:
        """Of the operation that runs now."""
        node: Any = torch._C._current_autograd_node()  # None where none runs
        if node is not None:
            return self._of.get(node._sequence_nr(), "")
        line = find_line()
        self._of[torch._C._autograd._get_sequence_nr() - 1] = line
        return line


def find_line() -> str:
    """The innermost line of somebody's own code, and otherwise of an installed library."""
    frame: FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None and frame.f_code.co_name != "_record":  # who asked for a recording is not in it
        name = frame.f_code.co_filename
        if _is_code(name):
            if "site-packages" not in name:
                return _say(frame, frame.f_lineno)
            found = found or _say(frame, frame.f_lineno)
        frame = frame.f_back
    return found


def _is_code(name: str) -> bool:
    """Neither torch's nor Python's nor from here."""
    return not name.startswith((TORCH, HERE, "<")) and (not name.startswith(PYTHON) or "site-packages" in name)


def _say(frame: FrameType, number: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}, line {number}, in {frame.f_code.co_name}"


def find_fault(error: BaseException) -> str:
    """The innermost line of somebody's own code in a traceback."""
    found, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if _is_code(name):
            found = _say(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return found
