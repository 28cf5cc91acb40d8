"""A backbone: parameters that were trained on public data, in one file with a description of where they come from.

The file is safetensors, so nothing in it is executed. It is believed only if it is whole, by a digest of its content,
and only if it fits the model that is to start from it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from wholegrain import _check
from wholegrain._files import write_whole
from wholegrain.errors import ModelError, RunError, SpecError

FORMAT = 1
KEY = "wholegrain"


@dataclass(frozen=True, eq=False)
class Backbone:
    """Parameters and buffers by name, and facts for whoever must judge whether their origin is public."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """What tells these parameters, with their description, from any other."""
        total = hashlib.sha256(json.dumps(self.facts, sort_keys=True, ensure_ascii=False).encode())
        for name, tensor in sorted(self.tensors.items()):
            total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    def write(self, path: Path) -> None:
        """Put it in place, whole."""
        about = {"format": FORMAT, "digest": self.digest, "facts": dict(self.facts)}
        content = save(
            {name: tensor.contiguous() for name, tensor in self.tensors.items()},
            metadata={KEY: json.dumps(about, ensure_ascii=False)},
        )
        try:
            write_whole(path, content)
        except OSError as error:
            raise RunError(f"The backbone '{path}' cannot be written: {error.strerror}.") from error

    def load_into(self, model: nn.Module, name: str) -> None:
        """Give the model these parameters and buffers; one that it was not made for is refused."""
        own = model.state_dict()
        strange = sorted(set(own) ^ set(self.tensors))
        if strange:
            where = "the model" if strange[0] in self.tensors else "the backbone"
            raise ModelError(
                f"The backbone does not fit the model '{name}': {where} has no '{strange[0]}'.{self._hint}"
            )
        for key, value in self.tensors.items():
            if value.shape != own[key].shape:
                raise ModelError(
                    f"The backbone does not fit the model '{name}': '{key}' has the shape {list(value.shape)} there and"
                    f" {list(own[key].shape)} here.{self._hint}"
                )
        model.load_state_dict(dict(self.tensors))

    @property
    def _hint(self) -> str:
        model, values = self.facts.get("model"), self.facts.get("features")
        if not model:
            return ""
        sizes = f" and {values} values of an item (of text, the window)" if values else ""
        classes, options = self.facts.get("classes"), self._options
        return f" It was made for '{model}' with {classes} classes{sizes}; its model.options are {options}."

    @property
    def _options(self) -> str:
        """The options that it was made with, in one line: a file can hold anything."""
        given = self.facts.get("options")
        written = [f"{key} = {json.dumps(given[key], default=str)}" for key in given] if isinstance(given, dict) else []
        return _check.quoted(", ".join(written)) or "their defaults"


@dataclass(frozen=True)
class PublicStart:
    """What was public of a model before a run: the backbone that it starts from, and what is trained from there."""

    digest: str
    train: str | Sequence[str]
    """A word, or patterns of names."""
    rank: int | None
    """Of low-rank updates; None where there are none."""
    trained_parameters: int
    parameters: int
    backbone: Mapping[str, Any]
    """The backbone's own facts, among them its `data` and why that is `public`."""
    prefix: int | None = None
    """Positions of a learned prefix; None where there is none."""

    def facts(self) -> dict[str, Any]:
        """The start as JSON has it; `PublicStart(**facts)` reads it."""
        return asdict(self)


def read_backbone(path: Path) -> Backbone:
    """The backbone in a file, if it is whole and its values can be used."""
    try:
        with safe_open(path, framework="pt") as content:
            about = json.loads((content.metadata() or {}).get(KEY, "null"))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError as error:
        raise SpecError(
            f"There is no backbone '{path}'; put it there, or make one with `wholegrain pretrain`."
        ) from error
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise SpecError(
            f"The backbone '{path}' cannot be read: {_check.reason(error)}; copy or make it again."
        ) from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or not _tells_origin(about.get("facts")):
        raise SpecError(f"The file '{path}' does not say which public data it comes from; `wholegrain pretrain` does.")
    backbone = Backbone(tensors, about["facts"])
    if about.get("digest") != backbone.digest:
        raise SpecError(f"The backbone '{path}' is damaged: it is not what was written; copy or make it again.")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise SpecError(f"The backbone '{path}' holds values that are not finite; make it again.")
    return backbone


def _tells_origin(facts: Any) -> bool:
    return isinstance(facts, dict) and all(isinstance(facts.get(name), str) for name in ("data", "public"))
