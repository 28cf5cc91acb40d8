"""The Python and the commands of README and docs print what they are said to print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"```console\n\$ (wholegrain (?:calibrate|account).*?)\n(.*?)```", README, re.S)

PAGE = (ROOT / "docs" / "soundness.md").read_text(encoding="utf-8")
SOUNDNESS = re.findall(r"^\$ (wholegrain .*)\n((?:[^$`].*\n)+)", PAGE, re.M)


def test_twelve_lines_print_what_they_should() -> None:
    code, output = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.S).groups()  # type: ignore[union-attr]
    assert code == (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert code.count("\n") == 12
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == output


@pytest.mark.parametrize(("command", "output"), CONSOLES)
def test_commands_print_what_they_should(command: str, output: str) -> None:
    assert printed(command) == output


@pytest.mark.parametrize(("command", "beginning"), SOUNDNESS)
def test_soundness_shows_how_outputs_begin(command: str, beginning: str) -> None:
    assert printed(command).startswith(beginning)


@pytest.mark.parametrize(
    ("change", "epsilon"), [("--accountant rdp", "8.878"), ("--steps 312", "3.686")], ids=["rdp", "fewer steps"]
)
def test_soundness_says_what_the_first_command_gives_otherwise(change: str, epsilon: str) -> None:
    command = SOUNDNESS[0][0]
    assert f"epsilon            {epsilon}\n" in printed(f"{command} {change}")
    assert epsilon in PAGE


def printed(command: str) -> str:
    program = Path(sys.executable).parent / "wholegrain"
    return subprocess.run([program, *command.split()[1:]], capture_output=True, text=True, check=True).stdout


def test_every_package_is_on_the_map() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "wholegrain").glob("*/__init__.py")}
    assert {name for name in packages if f"`src/wholegrain/{name}/`" not in README} == set()
