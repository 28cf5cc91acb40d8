"""What is timed on: a model and one random batch, drawn from one seed, the same for every contestant.

The items of a batch belong to subjects by a fixed cycle of sizes, 1 to 8 items and 4 on average, in the order in which
a silo's sampler gives them: by size of the group, then by subject.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wholegrain.models.model_catalog import build

SEED = 20
GROUP_SIZES = (1, 2, 3, 4, 4, 4, 6, 8)


@dataclass(frozen=True, eq=False)
class Workload:
    """A model with fresh parameters and a batch that is ready to use."""

    model: nn.Module
    inputs: Tensor  # [item, ...]
    targets: Tensor  # [item]
    groups: Tensor  # [item]

    @property
    def batch(self) -> int:
        """Items in the batch."""
        return len(self.targets)

    @property
    def subjects(self) -> int:
        """Subjects in the batch."""
        return int(self.groups.max()) + 1

    @property
    def parameters(self) -> int:
        """Trainable parameters of the model."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Case:
    """How a workload is made."""

    title: str
    model: str
    batch: int
    features: int
    classes: int
    words: int = 0
    """Items are sequences of so many words; 0 where they are values."""

    def workload(self) -> Workload:
        """The model and the batch, from the seed alone."""
        draws = torch.Generator().manual_seed(SEED)
        shape = (self.batch, self.features)
        inputs = torch.randint(self.words, shape, generator=draws) if self.words else torch.rand(shape, generator=draws)
        targets = torch.randint(self.classes, (self.batch,), generator=draws)
        model = build(self.model, self.features, self.classes, SEED)
        return Workload(model, inputs, targets, groups_of(self.batch))


class MeanOfPositions(nn.Module):
    """The mean of a sequence's outputs."""

    def forward(self, outputs: Tensor) -> Tensor:
        """[item, position, feature] to [item, feature]."""
        return outputs.mean(1)


def small_transformer(features: int, classes: int, width: int = 64, heads: int = 4, layers: int = 2) -> nn.Module:
    """Embedding, encoder layers without dropout, the mean over positions, and a linear layer."""
    encoder = [nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(classes, width), *encoder, MeanOfPositions(), nn.Linear(width, classes))


def groups_of(batch: int) -> Tensor:
    """Subject numbers of a batch's items: whole cycles of sizes, and what is left in fours."""
    cycles, rest = divmod(batch, sum(GROUP_SIZES))
    sizes = torch.tensor(sorted(GROUP_SIZES * cycles + (4,) * (rest // 4)))
    return torch.repeat_interleave(torch.arange(len(sizes)), sizes)


CASES: Mapping[str, Case] = {
    "cnn128": Case("LEAF CNN, B = 128", "leaf_cnn", 128, 784, 62),
    "cnn512": Case("LEAF CNN, B = 512", "leaf_cnn", 512, 784, 62),
    "lstm100": Case("LSTM 2 × 256, T = 80, B = 100", "stacked_lstm", 100, 80, 80, words=80),
    "mlp256": Case("MLP 16-64-2, B = 256", "mlp", 256, 16, 2),
    "transformer64": Case("Transformer 2 × 64, T = 32, B = 64", "workloads:small_transformer", 64, 32, 80, words=80),
    "bert256": Case("BERT 4 × 256, T = 128, B = 32", "language_models:bert", 32, 128, 2, words=4000),
    "gpt2256": Case("GPT-2 4 × 256, T = 128, B = 32", "language_models:gpt2", 32, 128, 2, words=4000),
    "lora256": Case(
        "BERT 4 × 256 with LoRA, T = 128, B = 32", "language_models:bert_with_lora", 32, 128, 2, words=4000
    ),
}
