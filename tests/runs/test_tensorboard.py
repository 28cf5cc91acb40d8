"""Event files for TensorBoard: written where it is installed, and refused in a sentence where it is not."""

import math
import sys
from pathlib import Path

import pytest

from wholegrain.errors import SpecError
from wholegrain.federation.round_record import RoundRecord, Score
from wholegrain.runs.observers import SiloAnswer, ignore
from wholegrain.runs.tensorboard import _scalars, event_files

DONE = RoundRecord(
    round=0,
    cohort=("a",),
    spent=1.5,
    seconds=0.25,
    scores={"test": Score(0.5, {"accuracy": 0.75})},
    moved=2.0,
    noise=1.0,
)


def test_what_is_written() -> None:
    found = dict(_scalars(DONE))
    assert found["accuracy (not private)/test"] == 0.75
    assert found["privacy/epsilon spent"] == 1.5
    assert found["round/noise alone (expected)"] == 1.0
    unbounded = RoundRecord(round=0, cohort=("a",), spent=math.inf, seconds=0.25)
    assert "privacy/epsilon spent" not in dict(_scalars(unbounded))


def test_without_a_folder_nothing_is_written() -> None:
    with event_files(None) as observe:
        assert observe is ignore


def test_without_tensorboard_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SpecError, match=r"wholegrain\[tensorboard\]"), event_files(tmp_path):
        pass


@pytest.mark.filterwarnings("ignore")
def test_events_are_written_round_by_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'wholegrain[tensorboard]'")
    with event_files(tmp_path) as observe:
        observe(SiloAnswer(0, "a"))
        observe(DONE)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path)).Reload()
    assert set(read.Tags()["scalars"]) == set(dict(_scalars(DONE)))
    (spent,) = read.Scalars("privacy/epsilon spent")
    assert (spent.step, spent.value) == (1, 1.5)
