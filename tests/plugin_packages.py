"""Installed packages with entry points, as a folder on `sys.path` has them; nothing is installed for it."""

from collections.abc import Mapping
from pathlib import Path

GROUP = "wholegrain.commands"


def write_package(
    folder: Path, name: str, commands: Mapping[str, str], sources: Mapping[str, str] | None = None
) -> None:
    """Write a distribution with these commands (`module:object` by name) and these modules (source by name)."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{GROUP}]", *(f"{command} = {value}" for command, value in commands.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in (sources or {}).items():
        (folder / f"{module}.py").write_text(source)
