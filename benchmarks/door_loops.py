"""Whole training loops as a user writes them: data, model, optimizer, and a loop that yields after every step.

Every loop sees the same items, 20 batches of them, four of each subject. Private ones draw with Poisson's law, clip to
one norm and add the same noise. A loop runs in a process of its own, which answers lines of JSON: {"do": "first"} with
the seconds from data and model to the end of the first step, {"do": "steps", "times": 3} with those of later steps.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import wholegrain as wg
from peers import accepted
from record import CLOCKS
from settings import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER
from workloads import SEED

BATCHES, OF_ONE_SUBJECT, DELTA = 20, 4, 1e-5
AMPLE = 100.0
"""A budget that pays for every loop here, so that each payment is held against one."""


class LastOfLSTM(nn.Module):
    """Characters, one LSTM, and a linear layer on its last output."""

    def __init__(self, words: int = 80, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 8)
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        """[item, position] to [item, class]."""
        found: Tensor = self.out(self.lstm(self.embedding(x))[0][:, -1])
        return found


class OwnBert(nn.Module):
    """A model of transformers in a wrapper of one's own."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        words = {"vocab_size": 5000, "max_position_embeddings": 64, "num_labels": 10}
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.inner = BertForSequenceClassification(BertConfig(**sizes, **words, **still))

    def forward(self, x: Tensor) -> Tensor:
        """[item, position] to [item, class]."""
        found: Tensor = self.inner(input_ids=x).logits
        return found


def cnn() -> nn.Module:
    """Two convolutions and two linear layers on 28 × 28 intensities."""
    first = [nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp() -> nn.Module:
    """Two hidden layers of 256."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


@dataclass(frozen=True)
class Workload:
    """A model, the shape of an item, and how long a loop is; items are of `words` where they are text."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch: int
    steps: int
    words: int = 0
    simple: bool = False
    """So small that what surrounds the gradient weighs more: the targets are laxer."""

    def make(self) -> tuple[nn.Module, TensorDataset]:
        """Model and items, from the seed alone."""
        torch.manual_seed(SEED)
        net, shape = self.build(), (BATCHES * self.batch, *self.shape)
        inputs = torch.randint(self.words, shape) if self.words else torch.randn(shape)
        return net, TensorDataset(inputs, torch.randint(self.classes, shape[:1]))


WORKLOADS: Mapping[str, Workload] = {
    "logistic": Workload("Logistic, 18 → 2", lambda: nn.Linear(18, 2), (18,), 2, 256, 300, simple=True),
    "mlp": Workload("MLP 64-256-256-10", mlp, (64,), 10, 256, 200, simple=True),
    "cnn": Workload("CNN, 28 × 28", cnn, (1, 28, 28), 10, 256, 60),
    "lstm": Workload("LSTM 1 × 128, T = 40", LastOfLSTM, (40,), 80, 64, 60, words=80),
    "bert": Workload("BERT 2 × 128 in a wrapper, T = 64", OwnBert, (64,), 10, 32, 60, words=5000),
}


class Loop:
    """A training loop; `steps` begins it."""

    def __init__(self, workload: Workload, steps: int) -> None:
        self.net, self.items = workload.make()
        self.workload, self.count = workload, steps

    def steps(self) -> Iterator[None]:
        """Everything from data and model on; one item after each step."""
        raise NotImplementedError

    def epsilon(self) -> float | None:
        """What the steps have spent, asked of the loop's own accountant."""
        return None


class Plain(Loop):
    """torch with a DataLoader."""

    def steps(self) -> Iterator[None]:
        """Shuffled batches of a fixed size."""
        optimizer = torch.optim.SGD(self.net.parameters(), lr=LEARNING_RATE)
        loader = DataLoader(self.items, self.workload.batch, shuffle=True)
        yield from _epochs(self.net, optimizer, cross_entropy, loader)


class Ours(Loop):
    """`wg.private_steps` with a policy of the catalogue."""

    policy, unit = "local_item_dp", "item"
    ledger: str | None = None

    def __init__(self, workload: Workload, steps: int) -> None:
        super().__init__(workload, steps)
        self.door = wg.private_steps  # imported when it is first named, and to import is no part of the first step

    def steps(self) -> Iterator[None]:
        """As its documentation shows."""
        number = range(len(self.items))
        data = wg.from_torch(
            self.items, subjects=[k // OF_ONE_SUBJECT for k in number], classes=self.workload.classes,
            silos=["silo" for _ in number], items_per_subject=OF_ONE_SUBJECT,
        )  # fmt: skip
        optimizer = torch.optim.SGD(self.net.parameters(), lr=LEARNING_RATE)
        policy = getattr(wg, self.policy)(rate=1 / BATCHES, clip_norm=CLIP_NORM)
        self.private = self.door(
            self.net, data, policy=policy, unit=self.unit, steps=self.count, noise_multiplier=NOISE_MULTIPLIER,
            epsilon=AMPLE, delta=DELTA, ledger=self.ledger,
        )  # fmt: skip
        for _ in self.private:
            optimizer.step()
            yield

    def epsilon(self) -> float:
        """By privacy loss distributions, the default."""
        return self.private.spent


class OursBySubject(Ours):
    """The same for each subject."""

    policy, unit = "subject_dp", "subject"


class Opacus(Loop):
    """`PrivacyEngine.make_private`, on the model as Opacus can take it."""

    mode = "hooks"

    def __init__(self, workload: Workload, steps: int) -> None:
        super().__init__(workload, steps)
        import opacus  # not everybody has it

        self.engine = opacus.PrivacyEngine()

    def steps(self) -> Iterator[None]:
        """Poisson sampling, and the accountant that is its default."""
        net, loss = accepted(self.net), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
        given = {"noise_multiplier": NOISE_MULTIPLIER, "max_grad_norm": CLIP_NORM, "poisson_sampling": True}
        loader = DataLoader(self.items, self.workload.batch, shuffle=True)
        made = self.engine.make_private(
            module=net, optimizer=optimizer, criterion=loss, data_loader=loader, grad_sample_mode=self.mode, **given
        )
        net, optimizer, *losses, loader = made
        yield from _epochs(net, optimizer, losses[0] if losses else loss, loader)

    def epsilon(self) -> float:
        """By Opacus' PRV accountant, its default."""
        return float(self.engine.get_epsilon(DELTA))


class OpacusGhost(Opacus):
    """Two backward passes instead of gradients of every item."""

    mode = "ghost"


LOOPS: Mapping[str, type[Loop]] = {
    "plain": Plain,
    "item": Ours,
    "subject": OursBySubject,
    "opacus-hooks": Opacus,
    "opacus-ghost": OpacusGhost,
}


def _epochs(net: nn.Module, optimizer: Any, loss: Callable[..., Any], loader: Any) -> Iterator[None]:
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(net(inputs), targets).backward()
            optimizer.step()
            yield


def serve(workload: str, contestant: str, steps: str, clock: str) -> None:
    """Answer the parent until it closes the pipe."""
    warnings.simplefilter("ignore")  # Opacus warns of its own hooks in every step
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first optimizer imports much of torch
    read, loop = CLOCKS[clock], None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            found = None
            if request["do"] == "first":
                loop = LOOPS[contestant](WORKLOADS[workload], int(steps))
                begun = loop.steps()
            started = read()
            if request["do"] == "first":
                next(begun)
            elif request["do"] == "steps":
                for _ in range(request["times"]):
                    next(begun)
            else:
                found = loop.epsilon()
            reply: dict[str, Any] = {"seconds": read() - started, "epsilon": found}
        except Exception as error:  # whatever a peer raises is a reason not to take part, for the parent to print
            reply = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
