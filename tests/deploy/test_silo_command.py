"""`wholegrain silo --check`: where a silo stands, told to its operator before any server is."""

import json
import sys
from pathlib import Path

import pytest

from backbones import public_model, write_backbone
from command import Command


def test_a_silo_says_where_it_stands(wholegrain: Command, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from deployment import task, vector, write_charter
    from wholegrain.deploy.charter import load_charter
    from wholegrain.deploy.silo_answers import open_silo

    path = write_charter(tmp_path)
    told = wholegrain("silo", "--charter", path, "--check", "--json")
    assert told.code == 0
    standing = json.loads(told.out)
    assert (standing["subjects"], standing["epsilon"], standing["epsilon_spent"]) == (40, 4.0, 0.0)
    with open_silo(load_charter(path)) as host:
        host.answer(task(), vector())
    assert json.loads(wholegrain("silo", "--charter", path, "--check", "--json").out)["epsilon_spent"] > 1
    told = wholegrain("silo", "--charter", path, "--check")
    assert told.code == 0
    assert "Silo 'north'" in told.out
    assert "smallest_noise" in told.out


def test_a_charter_that_cannot_be_used_is_one_sentence(wholegrain: Command, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from deployment import write_charter

    for changes, said in (({"limit": {"epsilon": "FILL IN"}}, "limit.epsilon"), ({"limit": {"epsilon": 0}}, "epsilon")):
        path = write_charter(tmp_path, **changes)
        told = wholegrain("silo", "--charter", path)
        assert told.code == 2
        (line,) = told.err.splitlines()
        assert line.startswith("error: ")
        assert str(path) in line
        assert said in line
    (tmp_path / "visits.csv").unlink()
    path.write_text(path.read_text().replace("epsilon = 0", "epsilon = 1"))
    told = wholegrain("silo", "--charter", path, "--check")
    assert told.code == 2
    assert "visits.csv" in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"allow": {"models": [{"name": "logistik"}]}}, "did you mean 'logistic'"),
        ({"link": {"address": "a:1", "certificates": "ca.crt", "key": "key"}}, "link.certificates names"),
        ({"link": {"address": "a:1", "port": 9401}}, "unknown key 'link.port'"),
        ({"limit": {"epsilon": 6.0}}, "the ledger holds the budget"),
    ],
    ids=str,
)
def test_what_could_never_work_is_found_by_a_check(
    wholegrain: Command, tmp_path: Path, changes: dict, said: str
) -> None:
    pytest.importorskip("flwr")
    from deployment import task, vector, write_charter
    from wholegrain.deploy.charter import load_charter
    from wholegrain.deploy.silo_answers import open_silo

    with open_silo(load_charter(write_charter(tmp_path))) as host:
        host.answer(task(), vector())
    told = wholegrain("silo", "--charter", write_charter(tmp_path, **changes), "--check")
    assert told.code == 2
    assert said in told.err
    assert len(told.err.splitlines()) == 1


def test_an_operator_sees_the_digest_of_the_start_that_is_agreed_to(wholegrain: Command, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from deployment import write_charter

    digest = write_backbone(tmp_path / "public" / "b.safetensors")
    models = [public_model("public/b.safetensors", "low_rank", 2), {"name": "logistic"}]
    told = wholegrain("silo", "--charter", write_charter(tmp_path, allow={"models": models}), "--check", "--json")
    assert told.code == 0
    expected = f"mlp from the backbone {digest} (train 'low_rank', rank 2); logistic"
    assert json.loads(told.out)["models"] == expected
    shown = wholegrain("silo", "--charter", tmp_path / "silo.toml", "--check").out
    assert digest in "".join(shown.split())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"start": "absent.safetensors"}, "There is no backbone '"),
        ({"start": "silo.toml"}, "cannot be read"),
        ({"start": "half.safetensors"}, "cannot be read"),
        ({"start": "changed.safetensors"}, "is damaged"),
        ({"options": {"hidden": [5]}}, "does not fit the model 'mlp': '1.bias' has the shape [4] there"),
        ({"name": "logistic", "options": {}}, "It was made for 'mlp' with 2 classes"),
        ({"train": "tail"}, "allow.models.0.train"),
        ({"rank": 0}, "allow.models.0.rank"),
        ({"start": 3}, "allow.models.0.start"),
    ],
    ids=str,
)
def test_a_start_that_cannot_be_used_is_found_by_a_check(
    wholegrain: Command, tmp_path: Path, model: dict, said: str
) -> None:
    pytest.importorskip("flwr")
    from deployment import write_charter

    write_backbone(tmp_path / "b.safetensors")
    whole = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "changed.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    path = write_charter(tmp_path, allow={"models": [{**public_model("b.safetensors", "head"), **model}]})
    told = wholegrain("silo", "--charter", path, "--check")
    assert told.code == 2
    (line,) = told.err.splitlines()
    assert line.startswith("error: In the charter")
    assert said in line


def test_a_charter_cannot_freeze_what_nobody_trained(wholegrain: Command, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from deployment import write_charter

    models = [{"name": "mlp", "train": "head"}]
    told = wholegrain("silo", "--charter", write_charter(tmp_path, allow={"models": models}), "--check")
    assert told.code == 2
    assert told.err.startswith('error: In the charter, allow.models.0: model.train = "head" needs model.start')


def test_a_server_sees_the_price_of_its_spec(wholegrain: Command, tmp_path: Path) -> None:
    from deployment import as_toml

    silos = [{"name": name, "items": 100, "subjects": 40, "items_per_subject": 4} for name in ("north", "south")]
    spec = tmp_path / "spec.toml"
    tree = {
        "policy": {"name": "subject_dp", "rate": 0.5},
        "privacy": {"epsilon": 4.0},
        "federation": {"shape": [3], "classes": 2, "silos": silos},
    }
    spec.write_text(as_toml(tree))
    told = wholegrain("plan", spec, "--json")
    assert told.code == 0
    planned = json.loads(told.out)
    assert [silo["name"] for silo in planned["silos"]] == ["north", "south"]
    assert planned["guarantees"][0]["epsilon"] <= 4.0
    assert "public" not in planned

    digest = write_backbone(tmp_path / "b.safetensors")
    spec.write_text(as_toml({**tree, "model": public_model("b.safetensors", "head")}))
    assert json.loads(wholegrain("plan", spec, "--json").out)["public"]["digest"] == digest
    told = wholegrain("plan", spec)
    assert f"Starts from the backbone {digest}\nand trains 10 of 26 parameters (its last layer).\n" in told.out
    (tmp_path / "b.safetensors").unlink()
    told = wholegrain("plan", spec)
    assert told.code == 2
    assert told.err.startswith("error: There is no backbone ")


def test_without_flower_there_is_a_sentence_that_says_so(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wholegrain.deploy.silo_answers", None)  # as if Flower could not be imported there
    told = wholegrain("silo", "--charter", tmp_path / "silo.toml")
    assert told.code == 2
    assert told.err == "error: A silo needs Flower: pip install 'wholegrain[flower]'.\n"


def test_the_charters_former_option_still_works(wholegrain: Command, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from deployment import write_charter

    assert wholegrain("silo", "--policy-file", write_charter(tmp_path), "--check").code == 0
    assert "--policy-file" not in wholegrain("silo", "--help").out
