"""Tasks from plain values, as records of runs and files of models keep them; all kinds that there are."""

from collections.abc import Mapping
from typing import Any

from wholegrain.data.every_token import EveryToken
from wholegrain.data.tasks import Classification, MultiLabel, NextToken, Regression, Task
from wholegrain.errors import SpecError

KINDS: Mapping[str, type[Task]] = {
    task.kind: task for task in (Classification, NextToken, EveryToken, MultiLabel, Regression)
}


def read_task(facts: Mapping[str, Any]) -> Task:
    """The task that these plain values tell of.

    >>> read_task(Regression(0.0, 10.0).facts())
    Regression(low=0.0, high=10.0)
    """
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items() if key != "kind"}
    try:
        return KINDS[facts["kind"]](**options)
    except (KeyError, TypeError) as error:
        raise SpecError(f"This describes no task that this version knows: {dict(facts)}.") from error
