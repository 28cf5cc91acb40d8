"""Models for windows of characters."""

from torch import Tensor, nn


class StackedLSTM(nn.Module):
    """Embedding, stacked LSTM, and two linear layers on its last output [Marathe, §5]."""

    def __init__(self, classes: int, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character [item, class] after windows of tokens [item, position]."""
        outputs, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.outer(self.inner(outputs[:, -1]).relu())
        return scores


def stacked_lstm(
    features: int,
    classes: int,
    vocabulary: int | None = None,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """The character model of the paper; what comes next is one of the characters that came before."""
    return StackedLSTM(classes, vocabulary or classes, embedding, hidden, layers)


class Bigram(nn.Module):
    """Scores of the next character by the last one alone: a row of a table."""

    def __init__(self, classes: int, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, classes)
        nn.init.normal_(self.table.weight, std=0.01)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character [item, class] after windows of tokens [item, position]."""
        scores: Tensor = self.table(tokens[:, -1])
        return scores


def bigram(features: int, classes: int, vocabulary: int | None = None) -> nn.Module:
    """A table of what follows what: few enough parameters for few speakers."""
    return Bigram(classes, vocabulary or classes)
