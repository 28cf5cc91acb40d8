"""Two small runs for all tests of reports: one PROVED, one as the paper prints it."""

from pathlib import Path
from typing import Any

import pytest

from effort import coarse_grids
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

PROVED = {
    "data": {"source": "clinics", "options": {"patients": 120, "clinics": 3}},
    "policy": {"name": "subject_dp", "rate": 0.5},
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "rounds": {"count": 3, "steps": 2, "learning_rate": 1.0},
}
PRINTED = {
    **PROVED,
    "policy": {"name": "local_group_dp", "batch_size": 20, "as_printed": True},
    "rounds": {"count": 6, "steps": 2},
}


def played(folder: Path, tree: dict[str, Any], *, finish: bool = True) -> Path:
    """A run in a folder, as the command leaves it."""
    with coarse_grids():
        return _played(folder, tree, finish=finish)


def _played(folder: Path, tree: dict[str, Any], *, finish: bool) -> Path:
    prepared = prepare(RunSpec.of(tree))
    record = RunFolder.create(folder, prepared)
    with open_guard(prepared, record.run, record.path, create=False) as guard:
        run = execute(prepared, guard, record=lambda done, state: record.add_round(done, state, 1))
    if finish:
        record.finish(run)
    return folder


@pytest.fixture(scope="session")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("runs") / "proved", PROVED)


@pytest.fixture(scope="session")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("runs") / "printed", PRINTED)
