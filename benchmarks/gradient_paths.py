"""Which models are proved, and run in whole batches, and which go one unit after the other, and why.

Run: python benchmarks/gradient_paths.py

For each model a batch of made-up items goes through the engine; the result is compared with the reference, which
differentiates one item at a time, in single precision. Models of transformers are there where it is installed (4.57.1
was); they are built from their configs, with random parameters, at the sizes that the table says.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from clip_fuzz import KINDS
from wholegrain.clipping import reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.kernels import KernelChecks
from wholegrain.clipping.parameters import flatten
from wholegrain.models.dropout import with_item_coins
from wholegrain.models.model_catalog import build
from wholegrain.models.named_inputs import from_transformers
from wholegrain.models.trainable_part import train_part

ITEMS, WORDS, LENGTH = 8, 200, 16


@dataclass(frozen=True)
class Row:
    """A model, and the shape of an item; with `words`, items are tokens."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: int = 0


def rows() -> Iterator[Row]:
    """Layers and patterns, the catalogue, and transformers."""
    for name, kind in KINDS.items():
        yield Row(name, kind.make, kind.shape, kind.tokens)
    for name in ("logistic", "mlp", "ft_transformer", "small_cnn", "upright_cnn"):
        yield Row(f"catalogue: {name}", lambda name=name: build(name, 64, 3, 0), (64,))  # type: ignore[misc]
    yield Row("catalogue: resnet18", lambda: build("resnet18", 784, 3, 0), (784,))
    for name in ("stacked_lstm", "bigram", "causal_transformer", "bag_of_tokens"):
        yield Row(f"catalogue: {name}", lambda name=name: build(name, LENGTH, 80, 0), (LENGTH,), 80)  # type: ignore[misc]
    yield Row(
        "causal_transformer with dropout",
        lambda: with_item_coins(build("causal_transformer", LENGTH, 80, 0, {"dropout": 0.1})),
        (LENGTH,),
        80,
    )
    for train in ("biases", "low_rank", "prefix", ("blocks.1.*", "head.*")):
        written = train if isinstance(train, str) else " and ".join(train)
        yield Row(
            f"causal_transformer, train {written}",
            lambda train=train: train_part(build("causal_transformer", LENGTH, 80, 0), train, 4, 4, 0),  # type: ignore[misc]
            (LENGTH,),
            80,
        )
    if importlib.util.find_spec("transformers"):
        yield from of_transformers()


def of_transformers() -> Iterator[Row]:
    """Two layers of width 32, and two adapters."""
    import transformers as t

    size = {"vocab_size": WORDS, "num_labels": 3, "pad_token_id": 0}
    deep = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    gpt2 = t.GPT2Config(**size, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    bert = t.BertConfig(**size, **deep, max_position_embeddings=64)
    llama = t.LlamaConfig(**size, **deep, num_key_value_heads=1, max_position_embeddings=64)
    vit = t.ViTConfig(**deep, image_size=16, patch_size=4, num_channels=1, num_labels=3)
    models: dict[str, Callable[[], nn.Module]] = {
        "BertForSequenceClassification": lambda: t.BertForSequenceClassification(bert),
        "DistilBertForSequenceClassification": lambda: t.DistilBertForSequenceClassification(
            t.DistilBertConfig(**size, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64)
        ),
        "RobertaForSequenceClassification": lambda: t.RobertaForSequenceClassification(
            t.RobertaConfig(**size, **deep, max_position_embeddings=66)
        ),
        "GPT2ForSequenceClassification": lambda: t.GPT2ForSequenceClassification(gpt2),
        "GPT2LMHeadModel (tied)": lambda: t.GPT2LMHeadModel(gpt2),
        "LlamaForSequenceClassification": lambda: t.LlamaForSequenceClassification(llama),
        "ViTForImageClassification": lambda: t.ViTForImageClassification(vit),
    }
    if importlib.util.find_spec("peft"):
        models["BERT with LoRA by peft"] = lambda: _adapt(t.BertForSequenceClassification(bert), ["query", "value"])
        models["GPT-2 with LoRA by peft"] = lambda: _adapt(t.GPT2ForSequenceClassification(gpt2), ["c_attn"])
        models |= of_peft(bert, gpt2, llama)
    for name, make in models.items():
        image = name.startswith("ViT")
        shape = (1, 16, 16) if image else (LENGTH,)
        yield Row(name, lambda make=make: from_transformers(make().eval()), shape, 0 if image else WORDS)  # type: ignore[misc]


def of_peft(bert: Any, gpt2: Any, llama: Any) -> dict[str, Callable[[], nn.Module]]:
    """Other adapters: learned keys and values in every layer, learned tokens, learned scales."""
    import peft
    import transformers as t

    few = {"num_virtual_tokens": 4, "task_type": "SEQ_CLS"}
    scaled = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    bases: dict[str, Callable[[], nn.Module]] = {
        "BERT": lambda: t.BertForSequenceClassification(bert),
        "GPT-2": lambda: t.GPT2ForSequenceClassification(gpt2),
        "Llama": lambda: t.LlamaForSequenceClassification(llama),
    }
    made: dict[str, Callable[[], nn.Module]] = {}
    for name, base in bases.items():
        made[f"{name} with prefix tuning by peft"] = partial(_with, base, peft.PrefixTuningConfig(**few))
        made[f"{name} with prompt tuning by peft"] = partial(_with, base, peft.PromptTuningConfig(**few))
    scales = peft.IA3Config(task_type="SEQ_CLS", **scaled)
    return made | {"Llama with IA³ by peft": partial(_with, bases["Llama"], scales)}


def _with(base: Callable[[], nn.Module], config: Any) -> nn.Module:
    import peft

    made: nn.Module = peft.get_peft_model(base(), config)
    return made


def _adapt(model: nn.Module, layers: list[str]) -> nn.Module:
    import peft

    made: nn.Module = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=layers, task_type="SEQ_CLS"))
    return made


def describe(row: Row) -> str:
    """A line of the table."""
    torch.manual_seed(0)
    model, draws = row.make(), torch.Generator().manual_seed(1)
    shape = (ITEMS, *row.shape)
    inputs = torch.randint(1, row.words, shape, generator=draws) if row.words else torch.rand(shape, generator=draws)
    targets, groups = torch.arange(ITEMS) % 3, torch.arange(ITEMS) // 2
    vector = flatten(model)
    vector += torch.randn(vector.shape, generator=draws) * 0.02  # off a beginning at zero
    engine, clip = BookKeeping(model, cross_entropy), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = engine(vector, inputs, targets, groups, clip).total
    expected = reference.clipped_sum(model, cross_entropy, vector, inputs, targets, groups, clip).total
    off = float((found.double() - expected.double()).norm() / expected.double().norm())
    return f"| {row.name} | {engine.reason or 'proved'} | {_passes(engine)} | {off:.0e} |"


def _passes(engine: BookKeeping) -> str:
    if engine._chosen is None:
        return "of one unit"
    return "whole batches" if isinstance(engine._chosen.sizes, KernelChecks) else "of 16 rows"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| model | way | passes | off the reference |\n|---|---|---|---|")
    for row in rows():
        print(describe(row), flush=True)


if __name__ == "__main__":
    main()
