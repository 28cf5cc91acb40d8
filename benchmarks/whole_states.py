"""A public start whose last layer sees all states of the LSTM instead of a code of them.

    python benchmarks/whole_states.py --backbone plays.safetensors --text FILE.txt.gz --out plays_states.safetensors

Its scores are those of the start that is given. The states are whitened by the public text, as `wholegrain pretrain`
does, but for a constant: the mean is taken away only so far that a constant of `CONSTANT` is left in what the last
layer sees. A run can then train that layer's weights alone (`model.train = ["2.weight"]`): the constant takes the place
of the bias, whose gradient is 16 times as steep as that of a whitened state and would set the learning rate of all.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import record
from wholegrain.errors import SpecError
from wholegrain.models import model_catalog
from wholegrain.models.backbone import Backbone, read_backbone
from wholegrain.models.fixed_layers import Whiten
from wholegrain.models.text import LastState
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.spec import RunSpec

TEXT_WINDOW = 96
FITTED = 2_500
"""Windows of public text that whitening is fitted to."""
FIRST = 8
"""Positions of a window that it is fitted to begin here."""
CONSTANT = 0.06
"""What is left of the mean, where whitened states have a length of about one."""


def main() -> None:
    """Write the start, and say how far its scores are from those of the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("backbone", "text", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    asked = parser.parse_args()
    given, tokens = read_backbone(asked.backbone), windows(asked.text)
    made = without_code(given, tokens)
    made.write(asked.out)
    with torch.no_grad():
        apart = (started(given)(tokens[:64]) - started(made)(tokens[:64])).abs().max()
    print(f"{asked.out}: {made.digest}; scores differ by {float(apart):.1e} at most")


def windows(text: Path) -> Tensor:
    """Windows of public text, from all of it."""
    options = {"path": str(text.absolute()), "window": TEXT_WINDOW, "stride": TEXT_WINDOW}
    inputs = load_dataset(RunSpec.of({"data": {"source": "documents", "options": options}})).data.inputs
    return torch.from_numpy(inputs[:: max(1, len(inputs) // FITTED)]).long()


def without_code(given: Backbone, tokens: Tensor) -> Backbone:
    """The same scores from all states: the code and its whitening become part of the last layer."""
    if given.facts.get("model") != "whitened_lstm" or "code" not in given.facts.get("options", {}):
        raise SpecError(f"Only of a whitened_lstm with a code can this be made; the start is a {_told(given)}.")
    options = {name: value for name, value in given.facts["options"].items() if name != "code"}
    old = started(given)
    new = model_catalog.build(given.facts["model"], given.facts["features"], given.facts["classes"], 0, options)
    assert isinstance(new, nn.Sequential)
    states, code, whitened, head = old
    assert isinstance(states, LastState)
    new[0].load_state_dict(states.state_dict())
    with torch.no_grad():
        fit(new[1], states.every_state(tokens)[:, FIRST:].flatten(0, 1))
        weight = head.weight.double() @ whitened.matrix.double().T
        bias = head.bias.double() + weight @ (code.bias - whitened.mean).double()
        fold(new, weight @ code.weight.double(), bias)
    tensors = {name: value.clone() for name, value in new.state_dict().items()}
    return Backbone(tensors, {**given.facts, "options": options})


def _told(given: Backbone) -> str:
    options = ", ".join(f"{name} = {value}" for name, value in given.facts.get("options", {}).items())
    return f"{given.facts.get('model', 'model without a name')} ({options or 'no options'})"


def fit(whitening: Whiten, states: Tensor) -> None:
    """Whiten by these states, and leave a constant."""
    whitening.fit(states)
    length = (whitening.mean @ whitening.matrix).norm()
    whitening.mean.mul_(1 - CONSTANT / length)


def fold(model: nn.Sequential, weight: Tensor, bias: Tensor) -> None:
    """Give the last layer what makes scores of whitened states equal to these weights and biases on plain ones."""
    _, whitening, head = model
    # With whitened(h) = (h - mean) @ matrix: h = whitened(h) @ inverse + mean.
    head.weight.copy_(weight @ torch.linalg.inv(whitening.matrix.double()).T)
    head.bias.copy_(bias + weight @ whitening.mean.double())


def started(backbone: Backbone) -> nn.Sequential:
    """The model of a start."""
    facts = backbone.facts
    model = model_catalog.build(facts["model"], facts["features"], facts["classes"], 0, facts["options"])
    backbone.load_into(model, facts["model"])
    assert isinstance(model, nn.Sequential)
    return model


if __name__ == "__main__":
    record.start(main)
