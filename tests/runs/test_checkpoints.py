"""Checkpoints: whole or not at all, and never one that is not what was written."""

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from small_runs import Faults, model, resume, start, stop_after, write_spec
from wholegrain.errors import RunError
from wholegrain.federation.rounds import State, digest
from wholegrain.runs.checkpoints import KEPT, Checkpoints

pytestmark = pytest.mark.usefixtures("coarse_prices")

LIKE = torch.zeros(7)


def vector(round: int) -> Tensor:
    return torch.arange(7.0) + 100 * round


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    """The checkpoints of a run that has played four rounds."""
    found = Checkpoints(tmp_path, "run")
    for round in range(5):
        found.add(State(round, vector(round)))
    return found


def file(kept: Checkpoints, round: int) -> Path:
    return kept.path / f"round-{round:07}.safetensors"


def assert_latest(kept: Checkpoints, round: int, most: int = 99) -> None:
    state = kept.latest(most, LIKE)
    assert state.round == round
    assert torch.equal(state.vector, vector(round))


def test_the_last_few_stay(kept: Checkpoints) -> None:
    assert sorted(path.name for path in kept.path.iterdir()) == [file(kept, r).name for r in range(5 - KEPT, 5)]
    assert_latest(kept, 4)


def test_one_that_knows_more_than_the_record_is_passed_over(kept: Checkpoints) -> None:
    assert_latest(kept, 3, most=3)
    with pytest.raises(RunError, match=r"Line 3 of .*rounds\.jsonl"):
        kept.latest(2, LIKE)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbled(path: Path) -> None:
    path.write_bytes(b"\xff" * 300)


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _of_another_round(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(b'"round":"4"') == 1
    path.write_bytes(content.replace(b'"round":"4"', b'"round":"2"'))


def _of_another_run(path: Path) -> None:
    facts = {"run": "other", "round": "4", "digest": digest(vector(4))}
    path.write_bytes(save({"vector": vector(4)}, metadata=facts))


def _of_another_kind(path: Path) -> None:
    whole = vector(4).to(torch.float64)
    path.write_bytes(save({"vector": whole}, metadata={"run": "run", "round": "4", "digest": digest(whole)}))


def _of_another_size(path: Path) -> None:
    longer = torch.zeros(8)
    path.write_bytes(save({"vector": longer}, metadata={"run": "run", "round": "4", "digest": digest(longer)}))


def _without_facts(path: Path) -> None:
    path.write_bytes(save({"vector": vector(4)}))


def _with_another_name(path: Path) -> None:
    path.write_bytes(save({"other": vector(4)}, metadata={"run": "run", "round": "4", "digest": digest(vector(4))}))


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [_cut, _empty, _garbled, _flipped, _of_another_round, _of_another_run, _of_another_kind, _of_another_size]
DAMAGES += [_without_facts, _with_another_name, _a_folder]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_gives_way_to_the_one_before(kept: Checkpoints, damage: Callable[[Path], None]) -> None:
    damage(file(kept, 4))
    assert_latest(kept, 3)


def test_a_copy_of_an_older_one_is_not_taken_for_a_newer(kept: Checkpoints) -> None:
    file(kept, 4).write_bytes(file(kept, 3).read_bytes())
    file(kept, 3).write_bytes(b"")
    with pytest.raises(RunError, match="No checkpoint"):
        kept.latest(99, LIKE)


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_none_is_whole_the_error_says_so(kept: Checkpoints, damage: Callable[[Path], None]) -> None:
    damage(file(kept, 4))
    file(kept, 3).write_bytes(b"")
    with pytest.raises(RunError, match=r"No checkpoint in .* is whole"):
        kept.latest(99, LIKE)


def test_a_folder_that_is_gone_holds_none(kept: Checkpoints) -> None:
    with pytest.raises(RunError, match="No checkpoint"):
        Checkpoints(kept.path / "gone", "run").latest(99, LIKE)


def test_whatever_fails_while_one_is_written_the_earlier_ones_are_there(kept: Checkpoints) -> None:
    before = {path.name: path.read_bytes() for path in kept.path.iterdir()}
    for number in itertools.count():
        faults = Faults(number, errno.ENOSPC)
        with faults.injected():
            try:
                kept.add(State(5, vector(5)))
            except OSError:
                assert faults.met
            else:
                break
        assert kept.latest(4, LIKE).round == 4
        assert not list(kept.path.glob("*.partial"))
        assert all((kept.path / name).read_bytes() == content for name, content in before.items())
    assert number > 3
    assert_latest(kept, 5)


def test_leftovers_are_no_checkpoints(kept: Checkpoints) -> None:
    (kept.path / "round-0000009.safetensors.partial").write_bytes(b"half")
    (kept.path / "notes.txt").write_text("mine")
    kept.add(State(5, vector(5)))
    assert_latest(kept, 5)


def test_parameters_last_although_their_file_goes(kept: Checkpoints) -> None:
    """A file that is read may be mapped into memory; rounds go on while it is replaced."""
    state = kept.latest(99, LIKE)
    for round in range(5, 8):
        kept.add(State(round, vector(round)))
    assert torch.equal(state.vector, vector(4))


def test_what_the_server_remembers_is_kept_and_vouched_for(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, "run")
    memory = {"speed": vector(7), "count": torch.tensor([3])}
    kept.add(State(1, vector(1), memory))
    found = kept.latest(1, vector(0)).memory
    assert found.keys() == memory.keys()
    assert all(torch.equal(found[name], value) for name, value in memory.items())
    (file,) = tmp_path.glob("*.safetensors")
    with safe_open(file, framework="pt") as content:
        facts = content.metadata()
    for changed in ({"speed": vector(8), "count": memory["count"]}, {"speed": memory["speed"]}, {}):
        tensors = {f"server.{name}": value for name, value in changed.items()}
        file.write_bytes(save({"vector": vector(1), **tensors}, metadata=facts))
        with pytest.raises(RunError, match="No checkpoint"):
            kept.latest(1, vector(0))


@pytest.mark.parametrize(
    "server", ["step='momentum'", "step='adam', learning_rate=0.1, average='tail'", "average='exponential'"]
)
def test_a_run_goes_on_with_what_its_server_remembers(server: str, tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "specs")
    spec.write_text(f"server = {{ {server}, schedule = 'linear' }}\n{spec.read_text()}")
    start(tmp_path / "whole", spec)
    for rounds in (1, 2):
        out = tmp_path / f"stopped-{rounds}"
        stop_after(out, rounds, spec)
        resume(out)
        assert model(out) == model(tmp_path / "whole")
