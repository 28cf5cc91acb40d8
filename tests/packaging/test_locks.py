"""The two locks: the same versions in both, and a hash for every file of the second."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / name).read_text()))


def test_the_lock_with_hashes_has_the_versions_of_the_other_and_leaves_out_torch_alone() -> None:
    plain, hashed = pins("requirements.lock"), pins("requirements-hashed.lock")
    assert len(plain) > 100
    assert set(plain) - set(hashed) == {"torch"}
    assert hashed == {name: version for name, version in plain.items() if name != "torch"}


def test_every_version_has_a_hash() -> None:
    text = (ROOT / "requirements-hashed.lock").read_text()
    parts = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(parts) == len(pins("requirements-hashed.lock"))
    assert [part.split()[0] for part in parts if not HASH.search(part)] == []


def test_the_version_of_torch_that_is_to_be_installed_first_is_that_of_the_lock() -> None:
    assert f"pip install torch=={pins('requirements.lock')['torch']}\n" in (ROOT / "SECURITY.md").read_text()
