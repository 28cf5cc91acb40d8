"""A run's parameters after its latest rounds, in safetensors; each file is whole, or it is passed over."""

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from wholegrain._files import write_whole
from wholegrain.errors import RunError
from wholegrain.federation.rounds import State, digest

MEMORY = "server."
KEPT = 2
"""Checkpoints that stay: one to go on from, and one in case it is damaged."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    path: Path
    run: str

    def add(self, state: State) -> None:
        """Write the state whole; then let go of those that are no longer needed."""
        facts = {"run": self.run, "round": str(state.round), "digest": _digest(state)}
        # Copies: a state may name one tensor twice, or the parameters themselves, and the format refuses that.
        remembered = {f"{MEMORY}{name}": value.contiguous().clone() for name, value in state.memory.items()}
        write_whole(self._file(state.round), save({"vector": state.vector, **remembered}, metadata=facts))
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
                facts = content.metadata() or {}
                tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (no mapping)
            round, vector = int(facts["round"]), tensors.pop("vector")
        except (SafetensorError, OSError, KeyError, ValueError):
            return None
        # The digest vouches for the parameters; that the round is theirs, the file's name must confirm.
        named = file == self._file(round) and facts.get("run") == self.run
        state = State(round, vector, {name.removeprefix(MEMORY): value for name, value in tensors.items()})
        return state if named and _digest(state) == facts.get("digest") else None

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:07}.safetensors"

    def _files(self) -> list[Path]:
        """From the newest to the oldest."""
        return sorted(self.path.glob("round-*.safetensors"), reverse=True)


def _digest(state: State) -> str:
    """What tells the parameters, and what the server remembers, from others."""
    remembered = [f"{name}:{value.dtype}:{digest(value)}" for name, value in sorted(state.memory.items())]
    own = digest(state.vector)
    return own if not remembered else hashlib.sha256("\n".join([own, *remembered]).encode()).hexdigest()


def _alike(vector: Tensor, like: Tensor) -> bool:
    return vector.dtype is like.dtype and vector.shape == like.shape
