"""What one can ask for: a part of the evaluation, at a scale.

Apart from what acts on it, so that the command can be listed without importing torch.
"""

from enum import StrEnum


class Part(StrEnum):
    """A part of the paper's evaluation."""

    FIG1 = "fig1"
    FIG2 = "fig2"
    FIG3 = "fig3"
    CLAIMS = "claims"
    """All figures, and the table of claims."""


class Scale(StrEnum):
    """How much is run."""

    SMOKE = "smoke"
    """Everything once, in a minute or two; the figures mean nothing."""
    SMALL = "small"
    """Under 40 minutes on two cores."""
    MEDIUM = "medium"
    """Two hours on two cores: plays with the paper's LSTM and batches, images as at the scale `small`."""
    FULL = "full"
    """The paper's rounds, batches and models."""
