"""What each command prints and leaves behind."""

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from safetensors.torch import load_file

from command import Command
from data_files import PLAY, femnist_records, write_leaf, write_mnist
from wholegrain.models.backbone import read_backbone
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.events import repeat, sampled_gaussian


def test_the_plan_of_a_federation_says_what_its_silos_have_to_allow(tmp_path: Path, wholegrain: Command) -> None:
    silos = [
        f'{{ name = "{name}", items = 4000, subjects = 900, items_per_subject = 4 }}' for name in ("north", "south")
    ]
    spec = tmp_path / "spec.toml"
    spec.write_text(
        '[model]\nname = "logistic"\n[policy]\nname = "subject_dp"\nrate = 0.5\n'
        '[privacy]\nepsilon = 4.0\nnoise = "secure"\n[rounds]\ncount = 60\n'
        f"[federation]\nshape = [3]\nclasses = 2\nsilos = [{', '.join(silos)}]\n"
    )
    limits = json.loads(wholegrain("plan", spec, "--json").out)["least_limits"]
    assert limits.keys() == {"north", "south"}
    said = f"limit.epsilon is at least {limits['north']:g}, for each subject at δ = 1e-05."
    assert said in wholegrain("plan", spec).out


def test_run_keeps_a_record(wholegrain: Command, clinics: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = wholegrain("run", clinics, "--out", out)
    assert outcome.code == 0
    assert "PROVED" in outcome.out
    assert "not private" in outcome.out
    assert "simulation" in outcome.out
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "checkpoints",
        "data.json",
        "ledger.sqlite",
        "ledger.sqlite.heads",
        "lock",
        "model.safetensors",
        "origins.json",
        "plan.json",
        "rounds.jsonl",
        "run.json",
        "spec.json",
        "summary.json",
    ]
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    spent = [line["epsilon"] for line in lines]
    assert spent == sorted(spent)
    promised = json.loads((out / "summary.json").read_text())["spent"][0]
    assert promised["epsilon"] == spent[-1] <= 4.0
    assert load_file(out / "model.safetensors")["1.weight"].shape == (2, 10)


def test_a_kept_spec_repeats_the_run(wholegrain: Command, clinics: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    wholegrain("run", clinics, "--out", first)
    assert wholegrain("run", first / "spec.json", "--out", second, "--quiet").code == 0
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_run_finds_a_free_folder(
    wholegrain: Command, clinics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [json.loads(wholegrain("run", clinics, "--json").out)["folder"] for _ in range(2)]
    assert folders == ["runs/clinics-1", "runs/clinics-2"]


def test_run_on_a_table(wholegrain: Command, visits: Path, tmp_path: Path) -> None:
    facts = json.loads(wholegrain("run", visits, "--out", tmp_path / "out", "--json").out)
    assert facts["spent"][0]["standing"] == "PROVED"


def test_plan_says_it_all_and_writes_nothing(wholegrain: Command, clinics: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    facts = json.loads(wholegrain("plan", clinics, "--json").out)
    assert facts["rounds_allowed"] >= facts["rounds"] == 3
    assert {g["unit"] for g in facts["guarantees"]} == {"subject", "item", "silo"}
    assert all(silo["noise_multiplier"] > 0 for silo in facts["silos"])
    shown = wholegrain("plan", clinics)
    assert "PROVED" in shown.out
    assert "subjects, 0.5" in shown.out
    assert {path for path in tmp_path.iterdir() if path.name != "cache"} == before


def test_plan_of_the_paper_as_printed_carries_claim_and_proof(wholegrain: Command, clinics: Path) -> None:
    changes = ["policy.name=user_ldp", "policy.as_printed=true", "rounds.count=8"]
    clinics.write_text(clinics.read_text().replace("rate = 0.5", "batch_size = 32"))
    facts = json.loads(wholegrain("plan", clinics, "--json", *(a for c in changes for a in ("--set", c))).out)
    claimed, proved = facts["guarantees"][:2]
    assert (claimed["standing"], claimed["epsilon"]) == ("CLAIMED", 4.0)
    assert proved["standing"] == "PROVED"
    assert proved["epsilon"] > claimed["epsilon"]
    assert facts["rounds"] == 4  # 8 / √4


def test_account_and_calibrate_are_inverse(wholegrain: Command) -> None:
    shape = "--policy local_group_dp --rate 0.02 --items-per-subject 8 --cap 2 --steps 200 --silos 3 --json".split()
    found = json.loads(wholegrain("calibrate", *shape, "--epsilon", "2").out)
    priced = json.loads(wholegrain("account", *shape, "--noise", str(found["noise_multiplier"])).out)
    assert priced["epsilon"] == pytest.approx(2, rel=1e-3)
    assert priced["epsilon"] <= 2
    assert (priced["unit"], priced["standing"], priced["accountant"]) == ("subject", "PROVED", "pld")
    assert priced["item_epsilon"] < priced["epsilon"]


@pytest.mark.parametrize(
    ("arguments", "noise"),
    [
        ("--policy local_item_dp", 1.8144),
        ("--policy local_group_dp --cap 3", 5.3270),
        ("--policy higradavg_dp --items-per-subject 7", 11.604),
        ("--policy user_ldp", 81.852),
    ],
)
def test_calibrate_as_printed(wholegrain: Command, arguments: str, noise: float) -> None:
    shape = f"--rate {512 / 25375} --steps 5000 --epsilon 4 --as-printed --json {arguments}".split()
    facts = json.loads(wholegrain("calibrate", *shape).out)
    assert facts["noise_multiplier"] == pytest.approx(noise, rel=1e-4)
    assert facts["standing"] == "CLAIMED"


@pytest.mark.parametrize("value", [0.0, 1e-3, float("nan"), -1.0, "free"])
def test_no_price_comes_from_a_file(wholegrain: Command, tmp_path: Path, value: object) -> None:
    """0.1.0 kept prices here, and believed whatever stood there."""
    shape = ["account", "--policy", "subject_dp", "--rate", "0.1", "--noise", "2", "--steps", "50", "--json"]
    right = wholegrain(*shape).out
    noise = [*"calibrate --policy subject_dp --rate 0.1 --epsilon 1 --steps 50 --json".split()]
    calibrated = wholegrain(*noise).out
    event = repeat(sampled_gaussian(0.1, 2.0), 50)
    key = hashlib.sha256(f"{PldAccountant().version}|{1e-5!r}|{event!r}".encode()).hexdigest()
    store = tmp_path / "cache" / "accounting.sqlite"
    store.parent.mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(store)) as database, database:
        database.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, epsilon REAL)")
        database.execute("INSERT INTO answers VALUES (?, ?)", [key, value])
    assert wholegrain(*shape).out == right
    assert wholegrain(*noise).out == calibrated


def test_bounds_grow_with_k(wholegrain: Command) -> None:
    shape = "bounds --steps 50 --learning-rate 0.01 --rate 0.01 --dimension 100 --items 1000 --batch-size 64 --json"
    rows = json.loads(wholegrain(*shape.split()).out)["bounds"]
    for name in ("local_group_dp", "higradavg_dp"):
        values = [row[name] for row in rows]
        assert values == sorted(values)
        assert values[0] == pytest.approx(rows[0]["local_item_dp"])


@pytest.mark.parametrize("what", ["clinics", "spec"])
def test_describe_is_marked_not_private(wholegrain: Command, clinics: Path, what: str) -> None:
    source = clinics if what == "spec" else what
    assert "not private" in wholegrain("data", "describe", source).out
    facts = json.loads(wholegrain("data", "describe", source, "--json").out)
    assert facts["private"] is False
    assert sum(facts["silos_per_subject"].values()) == facts["subjects"]
    assert sum(int(n) * c for n, c in facts["items_per_subject_and_silo"].items()) == facts["items"]


FEMNIST = """
[data]
source = "femnist"
options = { path = "leaf" }
[silos]
partition = "power"
count = 2
items_per_subject = 16
[policy]
rate = 0.5
[privacy]
epsilon = 4.0
[rounds]
count = 1
"""


def test_a_source_that_reads_files_beside_its_spec(wholegrain: Command, tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf" / "train" / "a.json", femnist_records(writers=8))
    write_leaf(tmp_path / "leaf" / "test" / "a.json", femnist_records(writers=2, seed=1))
    (tmp_path / "femnist.toml").write_text(FEMNIST)
    facts = json.loads(wholegrain("data", "describe", tmp_path / "femnist.toml", "--json").out)
    assert (facts["items"], facts["subjects"], len(facts["silos"])) == (128, 8, 2)
    assert facts["test"] == {"items": 32, "subjects": 2, "largest_subject": 16}
    outcome = wholegrain("run", tmp_path / "femnist.toml", "--out", tmp_path / "out", "--json")
    assert list(json.loads(outcome.out)["scores (not private)"]) == ["test"]
    again = wholegrain("run", tmp_path / "out" / "spec.json", "--out", tmp_path / "again", "--json")
    assert json.loads(again.out)["scores (not private)"] == json.loads(outcome.out)["scores (not private)"]


def test_describe_a_source_by_name_and_path(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "play.txt").write_text(PLAY.replace("die", "d$e"))
    monkeypatch.chdir(tmp_path)
    changes = ["--set", "data.options.path=play.txt", "--set", "data.options.window=10"]
    shown = wholegrain("data", "describe", "plays", *changes).out
    assert "characters that the vocabulary lacks, read as spaces: 1" in shown
    assert "no silos yet" in shown
    shown = wholegrain("data", "describe", "mnist_writers", "--set", f"data.options.path={write_mnist(tmp_path)}").out
    assert "own test part: 20 items of 2 subjects" in shown


def test_data_list(wholegrain: Command) -> None:
    assert "nlswork" in wholegrain("data", "list").out


def test_version_and_help(wholegrain: Command) -> None:
    assert wholegrain("--version").out.startswith("wholegrain 0.")
    assert "calibrate" in wholegrain("--help").out


def test_describe_draws_what_it_counts(wholegrain: Command, clinics: Path) -> None:
    shown = wholegrain("data", "describe", clinics).out
    for title in ("Items of a subject", "Silos of a subject", "Largest group in a batch"):
        assert title in shown
    assert "█" in shown
    facts = json.loads(wholegrain("data", "describe", clinics, "--json").out)
    assert f"{facts['batches']['mean_largest_group']:.2f}" in shown
    assert facts["batches"]["policy"] == "subject_dp"


def test_init_writes_a_spec_that_plan_refuses_until_it_is_filled_in(
    wholegrain: Command, visits: Path, tmp_path: Path
) -> None:
    made = wholegrain("data", "init", tmp_path / "visits.csv", "--out", tmp_path / "new.toml", "--target", "ill")
    assert made.code == 0
    assert "patient  (a guess by its name)" in made.out
    assert "ill\n" in made.out
    spec = tmp_path / "new.toml"
    for verb in (["plan"], ["run", "--out", tmp_path / "out"], ["data", "describe"]):
        refused = wholegrain(*verb, spec)
        assert (refused.code, refused.out) == (2, "")
        assert "data.table.target.classes still says 'FILL IN' (and 3 more)" in refused.err
    assert not (tmp_path / "out").exists()
    text = spec.read_text().replace('low = "FILL IN", high = "FILL IN"', "low = 0, high = 110")
    text = text.replace('classes = ["FILL IN"]', "classes = [0, 1]")
    spec.write_text(text.replace('categories = ["FILL IN"]', 'categories = ["f", "m"]'))
    assert "PROVED" in wholegrain("plan", spec).out


PRETRAINING = """
public = "drawn from typefaces"
[data]
source = "glyphs"
options = { writers = 40, items = 6, classes = 3 }
[model]
name = "mlp"
[training]
batch_size = 8
"""


@pytest.mark.slow
def test_pretrain_writes_a_backbone_once_and_says_what_it_is(wholegrain: Command, tmp_path: Path) -> None:
    spec, out = tmp_path / "public.toml", tmp_path / "b.safetensors"
    spec.write_text(PRETRAINING)
    told = json.loads(wholegrain("pretrain", spec, "--out", out, "--json").out)
    assert told["public"] == "drawn from typefaces"
    assert told["digest"] == read_backbone(out).digest
    again = wholegrain("pretrain", spec, "--out", out)
    assert again.code == 2
    assert "already exists" in again.err
    other = wholegrain("pretrain", spec, "--out", tmp_path / "other.safetensors", "--quiet")
    assert (other.code, other.err) == (0, "")
    assert told["digest"][:16] in other.out
    assert "no folder" in wholegrain("pretrain", spec, "--out", tmp_path / "nowhere" / "b.safetensors").err
