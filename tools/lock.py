"""Resolve pyproject.toml anew, in an environment of its own, and write requirements.lock.

torch is pinned first and by its public version, so that pip takes a CPU build wherever one is offered.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
HEADER = "# Exact versions of everything that wholegrain needs, tests and docs included. Written by `make lock`.\n"


def main() -> None:
    """Install into a temporary environment and freeze it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", TORCH], check=True)
        subprocess.run([*pip, "install", f"{ROOT}[data,flower,docs,dev]"], check=True)
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    lines = [line for line in frozen.splitlines() if not line.startswith("wholegrain")]
    pins = [re.sub(r"^torch==([\d.]+)\+.*$", r"torch==\1", line) for line in lines]
    (ROOT / "requirements.lock").write_text(HEADER + "\n".join(pins) + "\n")


if __name__ == "__main__":
    main()
