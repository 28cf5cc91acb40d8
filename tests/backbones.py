"""A backbone that takes no training, and models that start from it."""

from pathlib import Path
from typing import Any

from wholegrain.models.backbone import Backbone
from wholegrain.models.model_catalog import build

OPTIONS = {"hidden": [4]}
FACTS = {"public": "made up for a test", "data": "nothing", "model": "mlp", "classes": 2}


def write_backbone(path: Path, seed: int = 11, features: int = 3) -> str:
    """Parameters for `public_model` on so many features and two classes; their digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = build("mlp", features, 2, seed, OPTIONS)
    backbone = Backbone({name: value.clone() for name, value in made.state_dict().items()}, FACTS)
    backbone.write(path)
    return backbone.digest


def public_model(start: str, train: str, rank: int | None = None) -> dict[str, Any]:
    """A model that starts from the backbone at `start`, as a spec or a charter names it."""
    return {"name": "mlp", "options": OPTIONS, "start": start, "train": train, **({"rank": rank} if rank else {})}
