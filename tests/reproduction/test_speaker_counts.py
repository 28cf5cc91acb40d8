"""The speakers of the plays, counted by LEAF's rules and shown beside what is printed of LEAF's files."""

from pathlib import Path

import pytest

from data_files import write_gutenberg
from wholegrain_reproduction.data_choice import choose_data
from wholegrain_reproduction.experiment import Experiment, write_results
from wholegrain_reproduction.recipes import load_recipe
from wholegrain_reproduction.scales import Part, Scale
from wholegrain_reproduction.speaker_counts import LEAST, WINDOW, count_speakers


def play(**said: int) -> str:
    """A play in which each speaker says so many characters."""
    return "ACT I.\n\n" + "\n\n".join(f"{name}.\n{'a' * count}" for name, count in said.items())


def test_a_speaker_needs_enough_windows(tmp_path: Path) -> None:
    place = write_gutenberg(tmp_path, play(Long=WINDOW + LEAST + 100, Enough=WINDOW + LEAST, Short=WINDOW + LEAST - 1))
    found = count_speakers(place)
    assert (found.speakers, found.kept) == (3, 2)
    assert found.windows_each == pytest.approx(LEAST + 50)


def test_the_page_shows_the_counts_beside_leafs(tmp_path: Path) -> None:
    place = write_gutenberg(tmp_path, play(Long=WINDOW + LEAST + 100, Short=10))
    asked = Experiment(
        Part.FIG1, Scale.SMOKE, choose_data(["glyphs", f"gutenberg_shakespeare={place}"]), tmp_path / "out"
    )
    asked.runs.mkdir(parents=True)
    write_results(asked, [load_recipe("shakespeare")], [], [])
    page = (asked.runs / "reproduction.md").read_text()
    assert "| plays of Project Gutenberg | 2 | 1 | 164 |" in page
    assert "| LEAF's files, as printed | 1,129 | 660 | 4,484 |" in page
