"""Tests of the compiled program, where this machine has a C compiler."""

import pytest

from wholegrain.errors import SpecError
from wholegrain.gradients.c_library import load_library


def require_compiler() -> None:
    """Skip a module or a test, with a notice, where there is none."""
    try:
        load_library()
    except SpecError as error:
        pytest.skip(str(error), allow_module_level=True)
