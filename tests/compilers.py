"""Tests of the compiled program, where this machine has a C compiler."""

import pytest

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.errors import SpecError
from wholegrain.silo.c_library import load_library

CLIPS = [
    Clip(ClipPer.ITEM, Pool.SUM, 0.3),
    Clip(ClipPer.ITEM, Pool.MEAN, 0.3),
    Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3),
    Clip(ClipPer.SUBJECT, Pool.SUM, 0.3),
    Clip(ClipPer.BATCH, Pool.MEAN, 0.3),
    Clip(ClipPer.NONE, Pool.SUM, 0.3),
]
"""Every way to clip that a program in C knows; the first four are by item or by subject."""
each_clip = pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: f"{clip.per}-{clip.pool}")


def require_compiler() -> None:
    """Skip a module or a test, with a notice, where there is none."""
    try:
        load_library()
    except SpecError as error:
        pytest.skip(str(error), allow_module_level=True)
