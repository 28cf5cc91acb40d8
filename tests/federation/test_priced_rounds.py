"""Rounds of a plan are paid for without a price; each is priced when somebody asks what it has spent."""

import pytest

import wholegrain as wg
from wholegrain.federation.round_record import RoundRecord
from wholegrain.privacy.accountants import PldAccountant

pytestmark = pytest.mark.usefixtures("coarse_prices")


def test_a_run_asks_for_as_many_prices_however_many_rounds_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    price = PldAccountant.epsilon
    monkeypatch.setattr(PldAccountant, "epsilon", lambda *given: asked.append(given[2]) or price(*given))  # type: ignore[func-returns-value]
    counts, visits = [], wg.clinics(patients=90, clinics=3)
    for rounds in (2, 5):
        asked.clear()
        policy = wg.subject_dp(rate=0.5)
        run = wg.train(visits, policy=policy, noise_multiplier=20.0, rounds=rounds, learning_rate=0.1, progress=False)
        counts.append(len(asked))
    assert counts[0] == counts[1]
    spent = [each.epsilon for each in run.rounds]
    assert spent == sorted(set(spent))
    assert len(asked) > counts[1]
    assert spent[-1] == run.guarantee.epsilon
    assert [RoundRecord.read(each.line()).spent for each in run.rounds] == [each.spent for each in run.rounds]
