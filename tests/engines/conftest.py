"""The command in this process, which may start others."""

from pathlib import Path

import pytest

import wholegrain
from wholegrain.cli import app

SOURCE = Path(wholegrain.__file__).parents[1]


@pytest.fixture(autouse=True)
def this_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started here run the code under test, as ranks of no group that pytest belongs to."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`wholegrain ARGS` in this process: its exit code and what it says to standard error."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["wholegrain", *map(str, arguments)])
        code = 0
        try:
            app.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, capsys.readouterr().err

    return call
