"""The command `reproduce`, registered as pyproject.toml does it, whatever is installed."""

import tomllib
from pathlib import Path

import pytest

from plugin_packages import GROUP, write_package

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def own_entry_points(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source tree that is put on PYTHONPATH has no entry points of its own."""
    folder = tmp_path_factory.mktemp("site")
    commands = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]
    write_package(folder, "wholegrain-checkout", commands)
    monkeypatch.syspath_prepend(folder)
