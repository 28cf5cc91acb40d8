"""Subject-level differential privacy for cross-silo federated learning."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wholegrain.api.finished_run import Run as Run
    from wholegrain.api.finished_run import load as load
    from wholegrain.api.policy_values import fedavg as fedavg
    from wholegrain.api.policy_values import higradavg_dp as higradavg_dp
    from wholegrain.api.policy_values import local_group_dp as local_group_dp
    from wholegrain.api.policy_values import local_item_dp as local_item_dp
    from wholegrain.api.policy_values import subject_dp as subject_dp
    from wholegrain.api.policy_values import uldp_avg as uldp_avg
    from wholegrain.api.policy_values import user_ldp as user_ldp
    from wholegrain.api.private_loop import PrivateSteps as PrivateSteps
    from wholegrain.api.private_loop import private_steps as private_steps
    from wholegrain.api.train import plan as plan
    from wholegrain.api.train import train as train
    from wholegrain.api.tune import TunedRun as TunedRun
    from wholegrain.api.tune import tune as tune
    from wholegrain.data.clinics import clinics as clinics
    from wholegrain.data.dataset import Dataset as Dataset
    from wholegrain.data.femnist import femnist as femnist
    from wholegrain.data.frames import from_frame as from_frame
    from wholegrain.data.mnist import mnist_writers as mnist_writers
    from wholegrain.data.nlswork import nlswork as nlswork
    from wholegrain.data.plays import plays as plays
    from wholegrain.data.schema import Category as Category
    from wholegrain.data.schema import Date as Date
    from wholegrain.data.schema import Number as Number
    from wholegrain.data.schema import Target as Target
    from wholegrain.data.shakespeare import shakespeare as shakespeare
    from wholegrain.data.subjects import SubjectData as SubjectData
    from wholegrain.data.subjects import subject_codes as subject_codes
    from wholegrain.data.tensors import from_torch as from_torch
    from wholegrain.data.text_feature import Text as Text
    from wholegrain.errors import WholegrainError as WholegrainError
    from wholegrain.models.named_inputs import from_transformers as from_transformers
    from wholegrain.policies.plan import Plan as Plan
    from wholegrain.privacy.definitions import Budget as Budget
    from wholegrain.privacy.definitions import Guarantee as Guarantee
    from wholegrain.privacy.definitions import Standing as Standing
    from wholegrain.privacy.definitions import Unit as Unit
    from wholegrain.runs.spec import RunSpec as RunSpec

__version__ = "0.2.0"

# Where each public name is defined: its module is imported when the name is first used (PEP 562), because torch and
# dp_accounting take seconds to import. Type checkers read the imports above; a test holds both lists together.
_MODULES = {
    "Budget": "wholegrain.privacy.definitions",
    "Category": "wholegrain.data.schema",
    "Date": "wholegrain.data.schema",
    "Dataset": "wholegrain.data.dataset",
    "Guarantee": "wholegrain.privacy.definitions",
    "Number": "wholegrain.data.schema",
    "Plan": "wholegrain.policies.plan",
    "PrivateSteps": "wholegrain.api.private_loop",
    "Run": "wholegrain.api.finished_run",
    "RunSpec": "wholegrain.runs.spec",
    "Standing": "wholegrain.privacy.definitions",
    "SubjectData": "wholegrain.data.subjects",
    "Target": "wholegrain.data.schema",
    "Text": "wholegrain.data.text_feature",
    "TunedRun": "wholegrain.api.tune",
    "Unit": "wholegrain.privacy.definitions",
    "WholegrainError": "wholegrain.errors",
    "clinics": "wholegrain.data.clinics",
    "fedavg": "wholegrain.api.policy_values",
    "femnist": "wholegrain.data.femnist",
    "from_frame": "wholegrain.data.frames",
    "from_torch": "wholegrain.data.tensors",
    "from_transformers": "wholegrain.models.named_inputs",
    "higradavg_dp": "wholegrain.api.policy_values",
    "load": "wholegrain.api.finished_run",
    "local_group_dp": "wholegrain.api.policy_values",
    "local_item_dp": "wholegrain.api.policy_values",
    "mnist_writers": "wholegrain.data.mnist",
    "nlswork": "wholegrain.data.nlswork",
    "plan": "wholegrain.api.train",
    "plays": "wholegrain.data.plays",
    "private_steps": "wholegrain.api.private_loop",
    "shakespeare": "wholegrain.data.shakespeare",
    "subject_codes": "wholegrain.data.subjects",
    "subject_dp": "wholegrain.api.policy_values",
    "train": "wholegrain.api.train",
    "tune": "wholegrain.api.tune",
    "uldp_avg": "wholegrain.api.policy_values",
    "user_ldp": "wholegrain.api.policy_values",
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
