"""Models that take inputs by name: a small one of our own, and those of transformers where it is installed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import wholegrain as wg
from agreement import Batch, assert_agrees, program_of, slow
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.traced import TracedGradients
from wholegrain.errors import DataError, ModelError

WORDS, LENGTH = 40, 9


class Reader(nn.Module):
    """What a model of transformers looks like from outside."""

    main_input_name = "input_ids"

    def __init__(self, every_position: bool = False, pad: int | None = 0) -> None:
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=pad)
        self.table, self.head, self.every_position = nn.Embedding(WORDS, 6), nn.Linear(6, 3), every_position

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.table(input_ids)
        if attention_mask is not None and not (not torch.compiler.is_compiling() and attention_mask.all()):
            x = x * attention_mask[..., None]
        return SimpleNamespace(logits=self.head(x if self.every_position else x.sum(1)))


def tokens(items: int = 8) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    made = torch.randint(1, WORDS, (items, LENGTH), generator=draws)
    made[::2, LENGTH - 3 :] = 0
    return made


def assert_fast(net: nn.Module, inputs: Tensor) -> None:
    batch = Batch(inputs, torch.arange(len(inputs)) % 3, torch.tensor([0, 0, 1, 1, 1, 2, 3, 4]))
    engine = BookKeeping(net, cross_entropy)
    assert slow(lambda: assert_agrees(engine, net, cross_entropy, flatten(net), batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("every_position", [False, True])
def test_padding_is_masked(packed: bool, every_position: bool) -> None:
    torch.manual_seed(0)
    net, inputs = wg.from_transformers(Reader(every_position)), tokens()
    given = torch.stack([inputs, (inputs != 0).long()], 1) if packed else inputs
    torch.testing.assert_close(net(given)[:1], net(given[:1, ..., : LENGTH - 3]))
    assert not torch.compiler.is_compiling()
    assert_fast(net, given)


def test_what_a_tokenizer_gives_is_packed() -> None:
    inputs = tokens(4)
    mask = (inputs != 0).long()
    whole = {"input_ids": inputs, "attention_mask": mask}
    subjects, targets = ["a", "a", "b", "c"], torch.tensor([0, 1, 2, 0])
    data = wg.from_torch((whole, targets), subjects=subjects).data
    assert np.array_equal(data.inputs, torch.stack([inputs, mask], 1).numpy())
    pairs = [({"input_ids": x, "attention_mask": m}, y) for x, m, y in zip(inputs, mask, targets, strict=True)]
    assert np.array_equal(wg.from_torch(Listed(pairs), subjects=subjects).data.inputs, data.inputs)
    with pytest.raises(DataError, match="other names of inputs"):
        wg.from_torch(Listed([*pairs[:3], ({"input_ids": inputs[3]}, targets[3])]), subjects=subjects)


class Listed(torch.utils.data.Dataset[Any]):
    """A data set with an item by number."""

    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> Any:
        return self.pairs[number]


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"pixels": torch.zeros(2, 3)}, "Inputs by name are input_ids"),
        ({"input_ids": torch.zeros(2, 3, dtype=torch.int64), "token_type_ids": torch.zeros(2, 3)}, "no attention_mask"),
        ({"input_ids": torch.zeros(2, 3)}, "whole numbers"),
        ({"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.ones(2, 4).long()}, "of one shape"),
    ],
)
def test_other_names_and_shapes_are_refused(inputs: dict[str, Tensor], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        wg.from_torch((inputs, torch.tensor([0, 1])), subjects=["a", "b"])


def test_another_module_is_refused() -> None:
    with pytest.raises(ModelError, match="is no model of transformers"):
        wg.from_transformers(nn.Linear(2, 2))


def made_by(kind: str) -> tuple[nn.Module, Tensor]:
    """A small model of transformers with random parameters, and a batch for it."""
    t = pytest.importorskip("transformers")
    size = {"vocab_size": WORDS, "num_labels": 3, "pad_token_id": 0}
    deep = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    if kind == "bert":
        return t.BertForSequenceClassification(t.BertConfig(**size, **deep, max_position_embeddings=24)), tokens()
    if kind == "distilbert":
        config = t.DistilBertConfig(**size, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=24)
        return t.DistilBertForSequenceClassification(config), tokens()
    if kind in ("gpt2", "gpt2 next token"):
        config = t.GPT2Config(**size, n_embd=16, n_layer=2, n_head=2, n_positions=24)
        return (t.GPT2ForSequenceClassification if kind == "gpt2" else t.GPT2LMHeadModel)(config), tokens()
    if kind == "llama":
        config = t.LlamaConfig(**size, **deep, num_key_value_heads=1, max_position_embeddings=24)
        return t.LlamaForSequenceClassification(config), tokens()
    config = t.ViTConfig(**deep, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    return t.ViTForImageClassification(config), torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))


KINDS = ["bert", "distilbert", "gpt2", "gpt2 next token", "llama", "vit"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_models_of_transformers_have_rules(kind: str) -> None:
    torch.manual_seed(0)
    model, inputs = made_by(kind)
    assert_fast(wg.from_transformers(model.eval()), inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_adapters_of_peft_have_rules_and_nothing_else_is_trained(kind: str) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model, inputs = made_by(kind)
    target = ["query", "value"] if kind == "bert" else ["c_attn"]
    config = peft.LoraConfig(r=2, target_modules=target, task_type="SEQ_CLS", fan_in_fan_out=kind == "gpt2")
    net = wg.from_transformers(peft.get_peft_model(model.eval(), config).eval())
    assert Layout.of(net).size < sum(p.numel() for p in net.parameters()) / 4
    assert_fast(net, inputs)
