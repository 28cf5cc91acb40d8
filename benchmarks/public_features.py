"""Two sources for the benchmark of the field: what the frozen part of a public start makes of digits and of plays.

In a spec: source = "public_features:digits", options = { path, start, most }. At most `most` items of a person are
used, the first ones: a public cap, which keeps the benchmark affordable. The last layer of the start is where every
method begins.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

import public_starts
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import rank_within
from wholegrain.data.tasks import Classification
from wholegrain.models.backbone import read_backbone
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.spec import RunSpec

STARTS = {"digits": "handwriting.safetensors", "plays": "addresses.safetensors"}
"""Of plays the one that is far from them: the last layer of the nearer one has little left to learn."""
CONSTANT = {"digits": 1.0, "plays": 0.125}
"""What the last layer's biases meet, where features have a length of about one: as much as one of 64 states of plays,
so that biases are no steeper than weights."""
STRIDE = 10
"""Characters from one window of a speaker to the next."""


def digits(*, path: str, start: str, most: int) -> Dataset:
    """MNIST by writer; the test writers' digits are its test part, all of them."""
    return _shown("digits", path, start, most)


def plays(*, path: str, start: str, most: int) -> Dataset:
    """The whole Shakespeare: which character follows a window."""
    return _shown("plays", path, start, most)


def head(start: Path, constant: float) -> np.ndarray:
    """The start's last layer [feature and a constant, class]."""
    _, last = public_starts.parts(read_backbone(start))
    return np.column_stack([last.weight.detach().numpy(), last.bias.detach().numpy() / constant]).T


def _shown(name: str, path: str, start: str, most: int) -> Dataset:
    backbone, tree = read_backbone(Path(start)), public_starts.recipe(name, Path(path), Path(start))
    if name == "plays":
        tree["data"]["options"]["stride"] = STRIDE
    dataset = load_dataset(RunSpec.of({"data": tree["data"]}))
    fewer = replace(dataset, data=dataset.data.take(np.flatnonzero(rank_within(dataset.data.subjects) < most)))
    tree["data"]["options"]["most"] = most  # so that the cache knows
    shown = public_starts.features(fewer, tree, backbone, Path(start).with_name(f"{name}_features.npz"))
    return replace(shown, name=name, task=Classification.of(shown.task.outputs))
