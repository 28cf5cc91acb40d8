"""Callbacks are told of every round, bars are drawn only where somebody sees them, and notebooks get escaped tables."""

from typing import Any

import pytest

import wholegrain as wg
from visit_tables import data, visits
from wholegrain.errors import SpecError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.runs.observers import SiloAnswer

pytestmark = pytest.mark.usefixtures("coarse_prices")

SHORT: dict[str, Any] = {"policy": wg.subject_dp(rate=1.0), "epsilon": 4, "rounds": 2, "learning_rate": 1.0}


class Watcher:
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def on_round(self, record: RoundRecord) -> None:
        self.rounds.append(record.round)


def test_callbacks_are_told_of_rounds_and_silos(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[SiloAnswer | RoundRecord] = []
    watcher = Watcher()
    wg.train(data(), **SHORT, callbacks=[events.append, watcher])
    assert watcher.rounds == [0, 1]
    assert [type(event).__name__ for event in events] == ["SiloAnswer", "SiloAnswer", "SiloAnswer", "RoundRecord"] * 2
    assert capsys.readouterr() == ("", "")
    with pytest.raises(SpecError, match="on_round"):
        wg.train(data(), **SHORT, callbacks=7)


def test_bars_are_drawn_when_they_are_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm")
    wg.train(data(), **SHORT)
    assert "ε spent" in capsys.readouterr().err
    wg.train(data(), **SHORT, progress=False)
    assert capsys.readouterr() == ("", "")


def test_tables_of_a_notebook_are_escaped() -> None:
    frame = visits().with_columns(clinic=visits()["clinic"] + "<script>")
    given = data(frame, name="<b>")
    run = wg.train(given, **SHORT, evaluation={"train": True})
    shown = [given, run, run.guarantee, wg.plan(given, **SHORT)]
    for each in shown:
        html = each._repr_html_()  # type: ignore[attr-defined]
        assert "<table>" in html
        assert "<script>" not in html
        assert "<b><b>" not in html
    assert "clinic 0&lt;script&gt;" in given._repr_html_()
