"""What is to be predicted: classes, the next token, several labels, or a number between public bounds.

A task says how targets are stored, what a model puts out for them, which loss and metrics are usual, and how outputs
are read. It is public: classes and bounds are declared, never counted.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wholegrain.errors import DataError, SpecError

Targets = NDArray[Any]
"""Class numbers, int64 [item], or numbers, float32 [item, output]."""
Outputs = NDArray[np.floating[Any]]
Columns = dict[str, NDArray[Any]]

SMALLEST_SHARE = 1e-12
"""What a class that does not occur counts as, so that its logarithm is finite."""


class Task(ABC):
    """One kind of prediction; its subclasses are frozen values."""

    kind: ClassVar[str]
    loss: ClassVar[str]
    """The usual loss, by its name in the catalogue."""
    headline: ClassVar[str]
    """The metric that is told of every round."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a model puts out for an item."""

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The usual metrics, by name, headline first."""

    @property
    def class_count(self) -> int:
        """Number of classes; 0 where there are none to choose from."""
        return 0

    @abstractmethod
    def require_targets(self, targets: Targets) -> None:
        """Refuse targets that are none of this task's."""

    @abstractmethod
    def made_up(self, items: int) -> Targets:
        """Targets of so many invented items, which differ from item to item."""

    @abstractmethod
    def constants(self, targets: Targets) -> Outputs:
        """[candidate, output] the best answers of a model that gives every item the same one."""

    @abstractmethod
    def opposite(self, outputs: Outputs) -> Targets:
        """[item] for each row of outputs the target that fits it least."""

    @abstractmethod
    def predictions(self, outputs: Outputs) -> Columns:
        """What outputs [item, output] predict, as columns of a table."""

    def in_units(self, values: Any) -> Any:
        """Outputs or targets (arrays or tensors) as metrics compare them: numbers in the target's own units."""
        return values

    def stated(self) -> dict[str, int | str]:
        """What silos and their server say of it, and must say alike."""
        return {"classes": self.class_count} | ({} if self.class_count else {"predicts": str(self)})

    def facts(self) -> dict[str, Any]:
        """The task as plain values; `read_task` reads them."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes. Targets are class numbers [item], outputs are logits [item, class].

    >>> task = Classification(("no", "yes"))
    >>> predicted = task.predictions(np.array([[0.0, 0.0], [0.0, 40.0]]))
    >>> predicted["prediction"].tolist(), predicted["probability: yes"].round(3).tolist()
    (['no', 'yes'], [0.5, 1.0])
    """

    classes: tuple[str, ...]

    kind: ClassVar[str] = "classification"
    loss: ClassVar[str] = "cross_entropy"
    headline: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise SpecError(f"A task needs two or more distinct classes, not {', '.join(self.classes) or 'none'}.")

    @staticmethod
    def of(count: int) -> "Classification":
        """So many classes, called by their numbers."""
        return Classification(tuple(map(str, range(count))))

    def __str__(self) -> str:
        return f"{len(self.classes)} classes"

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return len(self.classes)

    @property
    def class_count(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def metrics(self) -> tuple[str, ...]:
        """With two classes also how well they are ranked, and whether probabilities mean what they say."""
        return ("accuracy", "balanced_accuracy", "auc", "log_loss", "brier", "calibration_error")

    def require_targets(self, targets: Targets) -> None:
        """Refuse what is no class number."""
        if targets.dtype != np.int64 or targets.ndim != 1:
            raise DataError(f"The task is to tell {self} apart, and targets are {_form(targets)}; number the classes.")
        wrong = (targets < 0) | (targets >= len(self.classes))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DataError(
                f"The target of item {row} is {targets[row]}, and there are {self}: numbers from 0 to"
                f" {len(self.classes) - 1}."
            )

    def made_up(self, items: int) -> Targets:
        """Every class in turn."""
        return np.arange(items) % len(self.classes)

    def constants(self, targets: Targets) -> Outputs:
        """The shares of the classes: their most frequent one is the best guess, and no other constant loses less."""
        shares = np.bincount(targets.astype(np.int64), minlength=len(self.classes)) / max(len(targets), 1)
        constants: Outputs = np.log(np.maximum(shares, SMALLEST_SHARE))[None]
        return constants

    def opposite(self, outputs: Outputs) -> Targets:
        """The least likely class."""
        return np.asarray(outputs.argmin(1))

    def predictions(self, outputs: Outputs) -> Columns:
        """The most likely class, and the probability of each. Classes that are whole numbers come back as such.

        >>> Classification(("0", "1")).predictions(np.array([[-1.0, 1.0]]))["prediction"].tolist()
        [1]
        """
        likely = softmax(outputs)
        columns: Columns = {"prediction": _class_labels(self.classes)[likely.argmax(1)]}
        return columns | {f"probability: {name}": likely[:, k] for k, name in enumerate(self.classes)}


def _class_labels(classes: Sequence[str]) -> NDArray[Any]:
    """[class] its name; numbers where all are whole numbers, so that they equal what a table of numbers holds."""
    whole = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", name) for name in classes)
    return np.array([int(name) for name in classes]) if whole else np.array(classes, dtype=object)


@dataclass(frozen=True)
class NextToken(Classification):
    """The token that follows: one of a vocabulary."""

    kind: ClassVar[str] = "next token"

    def __str__(self) -> str:
        return f"{len(self.classes)} tokens"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Whether it is the first guess, or among the first five; and among how many it still has to choose."""
        return ("accuracy", *(["top_5"] if len(self.classes) > 5 else []), "perplexity")


@dataclass(frozen=True)
class MultiLabel(Task):
    """Several labels, each of which an item has or has not. Targets are 0 and 1 [item, label], outputs logits."""

    labels: tuple[str, ...]

    kind: ClassVar[str] = "multi-label"
    loss: ClassVar[str] = "binary_cross_entropy"
    headline: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise SpecError(f"A task needs distinct labels, not {', '.join(self.labels) or 'none'}.")

    def __str__(self) -> str:
        return f"{len(self.labels)} labels ({', '.join(self.labels)})"

    @property
    def outputs(self) -> int:
        """One logit for each label."""
        return len(self.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        """All of them are means over labels."""
        return ("accuracy", "balanced_accuracy", "auc", "log_loss", "brier", "calibration_error")

    def require_targets(self, targets: Targets) -> None:
        """Refuse what is neither 0 nor 1."""
        _require_shape(self, targets, len(self.labels))
        if not np.isin(targets, (0, 1)).all():
            raise DataError(f"The targets of {self} are 0 or 1, and some are neither.")

    def made_up(self, items: int) -> Targets:
        """Labels in turn."""
        return ((np.arange(items)[:, None] + np.arange(len(self.labels))) % 2).astype(np.float32)

    def constants(self, targets: Targets) -> Outputs:
        """The share of items with each label, as logits."""
        shares = np.clip(targets.mean(0, dtype=np.float64), SMALLEST_SHARE, 1 - SMALLEST_SHARE)
        constants: Outputs = np.log(shares / (1 - shares))[None]
        return constants

    def opposite(self, outputs: Outputs) -> Targets:
        """What is less likely, label by label."""
        return (outputs <= 0).astype(np.float32)

    def predictions(self, outputs: Outputs) -> Columns:
        """For each label, whether it is likely, and how likely."""
        likely = sigmoid(outputs)
        columns: Columns = {f"prediction: {name}": (outputs[:, k] > 0) for k, name in enumerate(self.labels)}
        return columns | {f"probability: {name}": likely[:, k] for k, name in enumerate(self.labels)}


@dataclass(frozen=True)
class Regression(Task):
    """A number between public bounds. Targets are scaled to [−1, 1] and clipped, [item, 1]; so are predictions.

    >>> task = Regression(0, 10)
    >>> task.scale(np.array([0.0, 5.0, 99.0])).ravel().tolist()
    [-1.0, 0.0, 1.0]
    >>> task.predictions(np.array([[0.5], [3.0]]))["prediction"].tolist()
    [7.5, 10.0]
    """

    low: float
    high: float

    kind: ClassVar[str] = "regression"
    loss: ClassVar[str] = "squared_error"
    headline: ClassVar[str] = "mae"

    def __post_init__(self) -> None:
        if not (self.low < self.high and np.isfinite(self.high - self.low)):
            raise SpecError(f"The bounds of a number must be finite with low < high, not {self.low} and {self.high}.")

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    @property
    def metrics(self) -> tuple[str, ...]:
        """Errors in the target's own units, and the share of its variance that is explained."""
        return ("mae", "rmse", "r2")

    def scale(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Targets [item, 1] of values in their own units [item]; what lies beyond a bound counts as the bound."""
        bounded = np.clip(np.asarray(values, np.float64), self.low, self.high)
        return (2 * (bounded - self.low) / (self.high - self.low) - 1).astype(np.float32).reshape(-1, 1)

    def in_units(self, values: Any) -> Any:
        """Within the bounds, and in the target's own units."""
        return (values.clip(-1.0, 1.0) + 1.0) * ((self.high - self.low) / 2) + self.low

    def require_targets(self, targets: Targets) -> None:
        """Refuse what was not scaled."""
        _require_shape(self, targets, 1)
        if not (np.abs(targets) <= 1).all():
            raise DataError(f"Targets of {self} are scaled to [−1, 1], and some lie beyond; scale them with the task.")

    def made_up(self, items: int) -> Targets:
        """Numbers from bound to bound."""
        return np.linspace(-1, 1, items, dtype=np.float32)[:, None]

    def constants(self, targets: Targets) -> Outputs:
        """The mean, which no other constant beats in squared error, and the median, which none beats in absolute."""
        return np.stack([targets.mean(0, dtype=np.float64), np.median(targets.astype(np.float64), axis=0)])

    def opposite(self, outputs: Outputs) -> Targets:
        """The bound that is further away."""
        return np.where(outputs > 0, -1.0, 1.0).astype(np.float32)

    def predictions(self, outputs: Outputs) -> Columns:
        """The number, in the target's own units."""
        return {"prediction": self.in_units(outputs[:, 0].astype(np.float64))}


def softmax(outputs: Outputs) -> NDArray[np.float64]:
    """[item, class] probabilities of logits."""
    shifted = np.exp(outputs.astype(np.float64) - outputs.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def sigmoid(outputs: Outputs) -> NDArray[np.float64]:
    """[item, label] probabilities of logits, each by itself."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * outputs.astype(np.float64))))


def _require_shape(task: Task, targets: Targets, width: int) -> None:
    if targets.dtype != np.float32 or targets.shape[1:] != (width,):
        raise DataError(
            f"The task is to predict {task}, and targets are {_form(targets)}, not float32 [item, {width}]."
        )


def _form(targets: Targets) -> str:
    return f"{targets.dtype} {['item', *targets.shape[1:]]}".replace("'", "")
