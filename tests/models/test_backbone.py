"""A backbone is read as it was written, or refused with what is wrong; and it fits the model, or is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from wholegrain.errors import ModelError, SpecError
from wholegrain.models.backbone import Backbone, read_backbone
from wholegrain.models.model_catalog import build

FACTS = {"public": "made up for a test", "data": "nothing", "model": "mlp", "classes": 3, "features": 4}


def some() -> tuple[nn.Module, Backbone]:
    model = build("mlp", features=4, classes=3, seed=1)
    return model, Backbone({name: value.clone() for name, value in model.state_dict().items()}, FACTS)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    model, backbone = some()
    backbone.write(tmp_path / "b.safetensors")
    found = read_backbone(tmp_path / "b.safetensors")
    assert found.facts == FACTS
    assert found.digest == backbone.digest
    other = build("mlp", features=4, classes=3, seed=2)
    found.load_into(other, "mlp")
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_the_digest_depends_on_values_and_on_the_description() -> None:
    _, backbone = some()
    changed = {name: value.clone() for name, value in backbone.tensors.items()}
    next(iter(changed.values())).view(-1)[0] += 1
    digests = {
        backbone.digest,
        Backbone(changed, FACTS).digest,
        Backbone(backbone.tensors, {**FACTS, "data": "x"}).digest,
    }
    assert len(digests) == 3


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    _, backbone = some()
    path = tmp_path / "b.safetensors"
    backbone.write(path)
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SpecError, match=r"b\.safetensors"):
            read_backbone(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SpecError, match="cannot be read"):
        read_backbone(path)


def test_missing_nameless_and_infinite_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"There is no backbone.*pretrain"):
        read_backbone(tmp_path / "absent.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(SpecError, match="which public data"):
        read_backbone(tmp_path / "plain.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors", {"wholegrain": json.dumps({"format": 99})})
    with pytest.raises(SpecError, match="which public data"):
        read_backbone(tmp_path / "other.safetensors")
    Backbone({"a": torch.tensor([1.0, float("inf")])}, FACTS).write(tmp_path / "infinite.safetensors")
    with pytest.raises(SpecError, match="not finite"):
        read_backbone(tmp_path / "infinite.safetensors")


@pytest.mark.parametrize(
    ("options", "said"), [({"hidden": [8]}, "hidden = [8]"), ({}, "their defaults"), ("a\x1b[2J", "their defaults")]
)
def test_a_backbone_of_other_options_says_which(options: object, said: str) -> None:
    """Where the model has the same name, nothing else tells what is another."""
    made = build("mlp", features=4, classes=3, seed=1, options={"hidden": [8]})
    backbone = Backbone(made.state_dict(), {**FACTS, "options": options})
    with pytest.raises(ModelError) as refused:
        backbone.load_into(build("mlp", features=4, classes=3, seed=1), "mlp")
    assert str(refused.value).endswith(f"its model.options are {said}.")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("name", "features", "classes", "why"),
    [
        ("mlp", 5, 3, r"'1\.weight' has the shape \[64, 4\] there and \[64, 5\] here"),
        ("mlp", 4, 2, r"'3\.weight' has the shape \[3, 64\] there and \[2, 64\] here"),
        ("logistic", 4, 3, "the model has no '3"),
    ],
)
def test_a_model_that_it_was_not_made_for_is_named(name: str, features: int, classes: int, why: str) -> None:
    _, backbone = some()
    with pytest.raises(ModelError, match=why) as refusal:
        backbone.load_into(build(name, features=features, classes=classes, seed=0), name)
    assert "made for 'mlp' with 3 classes and 4 values of an item" in str(refusal.value)
