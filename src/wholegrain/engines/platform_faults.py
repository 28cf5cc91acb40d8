"""What a server does when its machine fails for a while: no reason to end a run of days, so it is done again."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from wholegrain import _check
from wholegrain._machine_faults import is_passing

log = logging.getLogger("wholegrain.server")

FIRST, LONGEST = 2.0, 60.0
"""Seconds before what failed is tried again: the first time, and at most."""

Result = TypeVar("Result")


def again_and_again(act: Callable[[], Result]) -> Result:
    """Do something, again after each fault that passes, at a pace that slows down; what can be repeated, that is."""
    pause = FIRST
    while True:
        try:
            return act()
        except Exception as error:
            if not is_passing(error):
                raise
            say_fault(error, pause)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)


def say_fault(error: BaseException, pause: float) -> None:
    """Tell an operator what is wrong with the machine."""
    log.error("%s Trying again in %.0f s.", _check.quoted(str(error) or type(error).__name__), pause)
