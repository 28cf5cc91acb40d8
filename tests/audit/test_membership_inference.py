"""Who was trained on: the cast is fair, the figures are right, and FedAvg gives people away."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from wholegrain.audit.membership_inference import auc, measure_attack, membership, split_members, true_positive_rate
from wholegrain.audit.roc_figure import write_figure
from wholegrain.data.clinics import clinics
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError, SpecError
from wholegrain.privacy.definitions import Guarantee, Standing, Unit
from wholegrain.runs.spec import RunSpec

NONE = Guarantee(unit=Unit.SUBJECT, standing=Standing.NONE, epsilon=np.inf, delta=1e-5, accountant="", because="")


def test_nobody_is_asked_about_by_an_item_that_was_trained_on() -> None:
    data = clinics(patients=200, clinics=2, span=2, visits=7).data
    cast = split_members(data, seed=0)
    assert not set(cast.trained) & set(cast.kept)
    trained, kept = data.take(cast.trained), data.take(cast.kept)
    members = set(trained.subjects)
    assert [subject in members for subject in kept.subjects] == cast.of_member.tolist()
    counts = dict(zip(*np.unique(data.subjects, return_counts=True), strict=True))
    for subject, own in zip(*np.unique(kept.subjects, return_counts=True), strict=True):
        assert own == counts[subject] // 2
    assert 0.4 < len(members) / 200 < 0.6


def test_it_takes_people_with_two_items() -> None:
    lonely = SubjectData(np.zeros((50, 1), np.float32), np.zeros(50, np.int64), np.arange(50))
    with pytest.raises(DataError, match="two items or more"):
        split_members(lonely, seed=0)


def test_the_area_is_mann_and_whitneys() -> None:
    draws = np.random.default_rng(0)
    members, others = draws.normal(0.5, size=60), draws.normal(size=80)
    assert float(auc(members, others)) == pytest.approx(stats.mannwhitneyu(members, others).statistic / (60 * 80))


@pytest.mark.slow
def test_intervals_cover_what_they_should() -> None:
    """AUC of two unit normals one apart is Φ(1/√2)."""
    draws, true, covered = np.random.default_rng(1), float(stats.norm.cdf(1 / np.sqrt(2))), 0
    for seed in range(60):
        found = measure_attack(draws.normal(1.0, size=80), draws.normal(size=80), NONE, 0.95, seed)
        covered += found.auc_interval[0] <= true <= found.auc_interval[1]
    assert covered >= 50


def test_rates_are_taken_above_a_line_with_few_false_ones() -> None:
    others = np.arange(1000.0)
    found = true_positive_rate(np.array([989.5, 990.5, 995.0, 2.0]), others, 0.01, 0.95)
    assert found.true_positives == 0.75  # above 989, ten others are
    assert found.low < 0.75 < found.high
    assert found.resolved
    assert not true_positive_rate(np.array([1.0]), others[:50], 0.01, 0.95).resolved


def spec(policy: str, **privacy: object) -> RunSpec:
    return RunSpec.of(
        {
            "model": {"name": "mlp"},
            "policy": {"name": policy, "rate": 1.0},
            "privacy": privacy,
            "rounds": {"count": 60},
        }
    )


@pytest.mark.slow
def test_fedavg_gives_people_away_and_noise_hides_them(tmp_path: Path) -> None:
    """Fewer people than features: a model learns people by heart."""
    data = clinics(patients=200, clinics=1, span=1, visits=8, features=200)
    plain = membership(spec("fedavg"), data)
    assert plain.auc_interval[0] > 0.5
    hidden = membership(spec("subject_dp", noise_multiplier=30.0), data)
    assert hidden.auc_interval[0] < 0.5
    write_figure(hidden, tmp_path / "roc.svg")
    assert "proof allows" in (tmp_path / "roc.svg").read_text()
    write_figure(plain, tmp_path / "roc.png")
    assert (tmp_path / "roc.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SpecError, match=r"\.svg or \.png"):
        write_figure(plain, tmp_path / "roc.pdf")
