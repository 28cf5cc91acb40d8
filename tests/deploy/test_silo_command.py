"""`wholegrain silo --check`: where a silo stands, told to its operator before any server is."""

import json
import sys
from pathlib import Path

import pytest

from wholegrain.cli import app


@pytest.fixture
def wholegrain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["wholegrain", *map(str, arguments)])
        code = 0
        try:
            app.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_silo_says_where_it_stands(wholegrain, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from deployment import task, vector, write_charter
    from wholegrain.deploy.charter import load_charter
    from wholegrain.deploy.client import hosted

    path = write_charter(tmp_path)
    code, out, _ = wholegrain("silo", "--policy-file", path, "--check", "--json")
    assert code == 0
    standing = json.loads(out)
    assert (standing["subjects"], standing["epsilon"], standing["epsilon_spent"]) == (40, 4.0, 0.0)
    with hosted(load_charter(path)) as host:
        host.answer(task(), vector())
    assert json.loads(wholegrain("silo", "--policy-file", path, "--check", "--json")[1])["epsilon_spent"] > 1
    code, out, _ = wholegrain("silo", "--policy-file", path, "--check")
    assert code == 0
    assert "Silo 'north'" in out
    assert "smallest_noise" in out


def test_a_charter_that_cannot_be_used_is_one_sentence(wholegrain, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from deployment import write_charter

    for changes, said in (({"limit": {"epsilon": "FILL IN"}}, "limit.epsilon"), ({"limit": {"epsilon": 0}}, "epsilon")):
        path = write_charter(tmp_path, **changes)
        code, _, err = wholegrain("silo", "--policy-file", path)
        assert code == 2
        (line,) = err.splitlines()
        assert line.startswith("error: ")
        assert str(path) in line
        assert said in line
    (tmp_path / "visits.csv").unlink()
    path.write_text(path.read_text().replace("epsilon = 0", "epsilon = 1"))
    code, _, err = wholegrain("silo", "--policy-file", path, "--check")
    assert code == 2
    assert "visits.csv" in err
    assert len(err.splitlines()) == 1


def test_without_flower_there_is_a_sentence_that_says_so(
    wholegrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wholegrain.deploy.client", None)  # as if Flower could not be imported there
    code, _, err = wholegrain("silo", "--policy-file", tmp_path / "silo.toml")
    assert code == 2
    assert err == "error: A silo needs Flower: install wholegrain[flower].\n"
