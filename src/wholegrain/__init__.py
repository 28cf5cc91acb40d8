"""Subject-level differential privacy for cross-silo federated learning."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wholegrain.data.clinics import clinics as clinics
    from wholegrain.data.dataset import Dataset as Dataset
    from wholegrain.data.femnist import femnist as femnist
    from wholegrain.data.mnist import mnist_writers as mnist_writers
    from wholegrain.data.nlswork import nlswork as nlswork
    from wholegrain.data.plays import plays as plays
    from wholegrain.data.shakespeare import shakespeare as shakespeare
    from wholegrain.data.subjects import SubjectData as SubjectData
    from wholegrain.data.subjects import subject_codes as subject_codes
    from wholegrain.errors import WholegrainError as WholegrainError
    from wholegrain.policies.plan import Plan as Plan
    from wholegrain.privacy.definitions import Budget as Budget
    from wholegrain.privacy.definitions import Guarantee as Guarantee
    from wholegrain.privacy.definitions import Standing as Standing
    from wholegrain.privacy.definitions import Unit as Unit
    from wholegrain.runs.runner import Run as Run
    from wholegrain.runs.runner import train as train
    from wholegrain.runs.spec import RunSpec as RunSpec

__version__ = "0.2.0"

# Where each public name is defined: its module is imported when the name is first used (PEP 562), because torch and
# dp_accounting take seconds to import. Type checkers read the imports above; a test holds both lists together.
_MODULES = {
    "Budget": "wholegrain.privacy.definitions",
    "Dataset": "wholegrain.data.dataset",
    "Guarantee": "wholegrain.privacy.definitions",
    "Plan": "wholegrain.policies.plan",
    "Run": "wholegrain.runs.runner",
    "RunSpec": "wholegrain.runs.spec",
    "Standing": "wholegrain.privacy.definitions",
    "SubjectData": "wholegrain.data.subjects",
    "Unit": "wholegrain.privacy.definitions",
    "WholegrainError": "wholegrain.errors",
    "clinics": "wholegrain.data.clinics",
    "femnist": "wholegrain.data.femnist",
    "mnist_writers": "wholegrain.data.mnist",
    "nlswork": "wholegrain.data.nlswork",
    "plays": "wholegrain.data.plays",
    "shakespeare": "wholegrain.data.shakespeare",
    "subject_codes": "wholegrain.data.subjects",
    "train": "wholegrain.runs.runner",
}

__all__ = list(_MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
