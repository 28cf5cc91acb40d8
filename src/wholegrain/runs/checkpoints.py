"""A run's parameters after its latest rounds, in safetensors; each file is whole, or it is passed over."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from wholegrain._files import write_whole
from wholegrain.errors import RunError
from wholegrain.federation.rounds import State, digest

KEPT = 2
"""Checkpoints that stay: one to go on from, and one in case it is damaged."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    path: Path
    run: str

    def add(self, state: State) -> None:
        """Write the state whole; then let go of those that are no longer needed."""
        facts = {"run": self.run, "round": str(state.round), "digest": digest(state.vector)}
        write_whole(self._file(state.round), save({"vector": state.vector}, metadata=facts))
        for old in self._files()[KEPT:]:
            with contextlib.suppress(OSError):
                old.unlink()

    def latest(self, most: int, like: Tensor) -> State:
        """The newest whole checkpoint of at most `most` rounds, with parameters of this kind."""
        later = False
        for file in self._files():
            state = self._read(file)
            if state is not None and _alike(state.vector, like):
                if state.round <= most:
                    return state
                later = True
        if later:
            raise RunError(
                f"Line {most + 1} of '{self.path.parent / 'rounds.jsonl'}' is damaged, and all checkpoints are of later"
                " rounds; put it back, or start the run anew."
            )
        raise RunError(f"No checkpoint in '{self.path}' is whole; the run cannot go on, start it anew.")

    def _read(self, file: Path) -> State | None:
        """The state in a file, or None where it is not the one that was written there."""
        try:
            with safe_open(file, framework="pt") as content:
                facts, vector = content.metadata() or {}, content.get_tensor("vector")
            round = int(facts["round"])
        except (SafetensorError, OSError, KeyError, ValueError):
            return None
        # The digest vouches for the parameters; that the round is theirs, the file's name must confirm.
        named = file == self._file(round) and facts.get("run") == self.run
        return State(round, vector) if named and digest(vector) == facts.get("digest") else None

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:07}.safetensors"

    def _files(self) -> list[Path]:
        """From the newest to the oldest."""
        return sorted(self.path.glob("round-*.safetensors"), reverse=True)


def _alike(vector: Tensor, like: Tensor) -> bool:
    return vector.dtype is like.dtype and vector.shape == like.shape
