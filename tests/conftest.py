"""What every test relies on: one thread, a cache of its own, and hypothesis without a clock."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the command line's stored answers away from the user's own."""
    monkeypatch.setenv("WHOLEGRAIN_CACHE", str(tmp_path / "cache"))
