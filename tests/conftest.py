"""What every test relies on: one thread, a cache and a ledger of its own, and hypothesis without a clock."""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from command import Command, Outcome
from effort import amount, coarse_grids

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True, max_examples=amount(100, quick=30))
settings.load_profile("house")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests by hypothesis draw fewer examples in `make test`, so `make test-slow` plays them, too.

    Files that may take long come first: a worker that begins one at the end would keep all others waiting.
    """
    longest: dict[Path, float] = {}
    for item in items:
        if item.get_closest_marker("hypothesis"):
            item.add_marker("thorough")
        limit = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0), limit.args[0] if limit else 0)
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture(autouse=True, scope="session")
def no_cache_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For what is made once for many tests, before any of them has a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHOLEGRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("WHOLEGRAIN_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that no test has had yet; none of them is made, since most tests write nothing."""
    base = tmp_path_factory.mktemp("places")
    return (base / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, places: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the command line stores, and what it spends, away from the user's own: in the test's folder, if any."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else next(places)
    monkeypatch.setenv("WHOLEGRAIN_CACHE", str(folder / "cache"))
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(folder / "state"))
    monkeypatch.delenv("WHOLEGRAIN_COUNTER", raising=False)


COARSE = {"api", "contracts", "deploy", "engines", "federation", "models", "report", "runs", "silo"}


@pytest.fixture(autouse=True, scope="module")
def usual_prices(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prices on a coarse grid wherever runs are only a means, unless the file has `pytestmark = exact_prices`."""
    coarse = request.path.parent.name in COARSE and not request.node.get_closest_marker("exact_prices")
    with coarse_grids() if coarse else nullcontext():
        yield


@pytest.fixture
def coarse_prices() -> Iterator[None]:
    """Prices on a coarse grid, where no digits are asserted."""
    with coarse_grids():
        yield


@pytest.fixture
def wholegrain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Call `wholegrain ARGS` in this process."""
    from wholegrain.cli import app

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["wholegrain", *map(str, arguments)])
        code: int | str | None = 0
        try:
            app.main()
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Outcome(int(code or 0), captured.out, captured.err)

    return call
