"""The README's Python and its short commands print what it says they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"```console\n\$ (wholegrain (?:calibrate|account).*?)\n(.*?)```", README, re.S)


def test_twelve_lines_print_what_they_should() -> None:
    code, output = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.S).groups()  # type: ignore[union-attr]
    assert code == (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert code.count("\n") == 12
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == output


@pytest.mark.parametrize(("command", "output"), CONSOLES)
def test_commands_print_what_they_should(command: str, output: str) -> None:
    ran = subprocess.run(
        [Path(sys.executable).parent / "wholegrain", *command.split()[1:]], capture_output=True, text=True, check=True
    )
    assert ran.stdout == output


def test_every_package_is_on_the_map() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "wholegrain").glob("*/__init__.py")}
    assert {name for name in packages if f"`src/wholegrain/{name}/`" not in README} == set()
