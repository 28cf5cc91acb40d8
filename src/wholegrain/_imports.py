"""The user's own code, named in a spec as `module:name`."""

import importlib
from collections.abc import Callable
from typing import Any

from wholegrain import _check
from wholegrain.errors import SpecError


def own(what: str, name: str) -> Callable[..., Any]:
    """The function that `module:name` means. Importing runs the user's own code: never for a name that others sent."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the user's module raises
        raise SpecError(f"The {what} '{name}' cannot be imported: {_check.reason(error)}.") from error
    if not callable(found):
        raise SpecError(f"The {what} '{name}' is not callable.")
    return found  # type: ignore[no-any-return]
