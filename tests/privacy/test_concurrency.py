"""Twenty processes on one ledger: nobody overspends, nothing is lost, and a death in the middle stops nobody."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wholegrain
from effort import amount
from ledgers import bodies, reserved, witness_of
from wholegrain.privacy.ledger import Ledger

PROCESSES, ROUNDS = 20, 4
Crowd = Callable[[str, Path], list[Any]]


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    """A process that forks others; not this one, which has threads."""
    tests, sources = Path(__file__).parents[1], Path(wholegrain.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tests, sources)))}
    script = Path(__file__).with_name("crowd.py")
    host = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert host.stdin is not None
    assert host.stdout is not None

    def ask(scenario: str, path: Path) -> list[Any]:
        host.stdin.write(f"{scenario} {path}\n")
        host.stdin.flush()
        found: list[Any] = json.loads(host.stdout.readline())
        return found

    yield ask
    host.stdin.close()
    host.stdout.close()
    assert host.wait(600) == 0


def kinds(path: Path) -> Counter[str]:
    return Counter(json.loads(body)["kind"] for body in bodies(path))


@pytest.mark.thorough
@pytest.mark.parametrize("attempt", range(amount(3, quick=1)))
def test_all_create_the_same_ledger(crowd: Crowd, tmp_path: Path, attempt: int) -> None:
    path = tmp_path / "ledger.sqlite"
    identities = crowd("create", path)
    with Ledger.open(path, create=False) as ledger:
        assert set(identities) == {ledger.state.identity}
    assert kinds(path) == {"ledger": 1}


def test_exactly_what_the_budget_pays_for_is_granted(crowd: Crowd, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    granted = crowd("spend", path)
    assert all(isinstance(each, int) for each in granted), granted
    assert sum(granted) == PROCESSES * ROUNDS // 2
    assert reserved(path) == {"north": sum(granted)}
    with Ledger.open(path, create=False) as ledger:
        for number, each in enumerate(granted):
            assert ledger.state.runs[f"run-{number}"].reserved.get("north", 0) == each
        assert str(ledger.head) in witness_of(path).read_text().splitlines()
    assert kinds(path) == {"ledger": 1, "budget": 1, "run": PROCESSES, "reserved": sum(granted)}


@pytest.mark.slow
def test_whoever_dies_with_the_lock_blocks_and_damages_nobody(crowd: Crowd, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    heads = crowd("die", path)
    assert heads[:2] == [None, None]
    assert sorted(heads[2:]) == list(range(4, 4 + PROCESSES - 2))
    assert reserved(path) == {"north": PROCESSES - 2}
