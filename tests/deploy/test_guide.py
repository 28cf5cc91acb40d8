"""Every command of docs/operate-a-federation.md, in the page's order, on this machine."""

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from loopback import NAMES, PATIENCE, PROGRAMS, Federation, fill_roster, free_port, rounds_of, write_silo, write_tables

GUIDE = Path(__file__).parents[2] / "docs" / "operate-a-federation.md"
MOST_COMMANDS = 8


def commands(text: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def test_three_silos_train_after_at_most_eight_commands() -> None:
    text = GUIDE.read_text()
    section = text[text.index("## On one machine") : text.index("## On several machines")]
    assert len(commands(section)) <= MOST_COMMANDS
    assert commands(section)[-1] == "wholegrain server fed/server"
    assert all(command.startswith("wholegrain ") for command in commands(text))
    shown = set(re.findall(r"`?wholegrain federation ([a-z-]+)", text))
    assert shown == {"init", "join", "add-silo", "revoke", "renew"}


def fill_in(federation: Federation) -> None:
    """What the operators know, and a port that is free here."""
    for path in (federation.server / "server.toml", *federation.folder.glob("fed/*/silo.toml")):
        path.write_text(path.read_text().replace("8443", str(federation.port)))
    spec = federation.server / "spec.toml"
    spec.write_text(spec.read_text().replace('["FILL IN"]', "[3]").replace('"FILL IN"', "2"))
    fill_roster(federation)
    for name in NAMES:
        write_silo(federation, name, noise="secure")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_of_the_guide_works(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "federation").symlink_to("fed")
    federation = Federation(tmp_path, free_port(), write_tables(tmp_path / "data"))
    ran = []
    try:
        for command in commands(GUIDE.read_text()):
            program, *arguments = command.split()
            ran.append(arguments[0])
            if arguments[0] == "silo" and "--check" not in arguments:
                federation.start(tmp_path / f"{len(ran)}.log", PROGRAMS / program, *arguments)
                continue
            done = subprocess.run(
                [PROGRAMS / program, *arguments],
                cwd=tmp_path,
                env=federation.environment(),
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr, federation.logs())
            if len(ran) == 1:
                fill_in(federation)
        assert len(rounds_of(tmp_path / "fed" / "server" / "run")) == 10
        assert (tmp_path / "fed" / "server" / "run" / "summary.json").exists()
    finally:
        for process in federation.processes:
            federation.end(process)
