"""What a spec names: a row of a catalogue, or the user's own code as `module:name`."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from wholegrain import _check
from wholegrain.errors import SpecError, WholegrainError

Row = TypeVar("Row")
Made = TypeVar("Made")


class Registry(Mapping[str, Row]):
    """A catalogue of rows by name, which also takes the user's own code as `module:name`.

    >>> paces = Registry("pace", "server.pace", {"slow": 1, "fast": 2}, lambda name, function: function())
    >>> paces.find("fast"), list(paces)
    (2, ['slow', 'fast'])
    >>> paces.find("fats")
    Traceback (most recent call last):
    wholegrain.errors.SpecError: Unknown pace 'fats' (did you mean 'fast'?); known: slow, fast; or set server.pace to \
your own as module:name.
    """

    def __init__(
        self, what: str, key: str, rows: Mapping[str, Row], own: Callable[[str, Callable[..., Any]], Row]
    ) -> None:
        """`what` a row is called, the `key` of a spec that names one, and the row that the user's `own` code makes."""
        self._what, self._key, self._rows, self._own = what, key, rows, own

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> Row:
        """The row of this name, or of the user's own `module:name`.

        Importing runs the user's own code: never for a name that others sent.
        """
        if ":" in name:
            return self._own(name, self._import(name))
        if name not in self._rows:
            raise SpecError(
                f"Unknown {self._what} '{name}'{_check.suggestion(name, self._rows)}; known: {', '.join(self._rows)};"
                f" or set {self._key} to your own as module:name."
            )
        return self._rows[name]

    def make(self, name: str, factory: Callable[..., Any], options: Mapping[str, Any], kind: type[Made]) -> Made:
        """What the factory of `name` makes of a spec's options; an option that it does not have is refused."""
        self.require_options(name, factory, options)
        try:
            made = factory(**options)
        except WholegrainError:
            raise
        except Exception as error:
            if ":" not in name:
                raise
            # With its kind: what a missing file says is often its path alone.
            why = f"{type(error).__name__}: {_check.reason(error)}"
            raise SpecError(f"The {self._what} '{name}' cannot be made: {why}.") from error
        if not isinstance(made, kind):
            raise SpecError(f"The {self._what} '{name}' gave {type(made).__name__}, not a {kind.__name__}.")
        return made

    def require_options(
        self, name: str, factory: Callable[..., Any], options: Mapping[str, Any], given: Sequence[str] = ()
    ) -> None:
        """Refuse an option that the factory does not have; what is `given` by the program is none."""
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError):  # a callable that does not say what it takes
            return
        anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        known = [parameter for parameter in parameters if parameter not in given]
        for option in options:
            if option in given or not (anything or option in known):
                near, has = _check.suggestion(option, known), ", ".join(known) or "none"
                raise SpecError(
                    f"The {self._what} '{name}' has no option '{_check.quoted(option)}'{near}; it has {has}."
                )

    def _import(self, name: str) -> Callable[..., Any]:
        path, _, attribute = name.partition(":")
        cannot = f"The {self._what} '{name}' cannot be imported"
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            raise SpecError(f"{cannot}: {_check.reason(error)}; put its folder on PYTHONPATH.") from error
        except Exception as error:  # whatever the user's module raises
            raise SpecError(f"{cannot}: {_check.reason(error)}.") from error
        if not hasattr(module, attribute):
            near = _check.suggestion(attribute, vars(module))
            raise SpecError(f"{cannot}: the module '{path}' has no '{attribute}'{near}.")
        if not callable(found := getattr(module, attribute)):
            raise SpecError(f"The {self._what} '{name}' is not callable.")
        return found  # type: ignore[no-any-return]
