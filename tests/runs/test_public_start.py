"""Runs that start from public parameters: the same gradients with or without a cached view, and a record that tells."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import wholegrain as wg
from small_runs import PRICING, model, resume, start, stop_after
from wholegrain.clipping.engine import BookKeeping
from wholegrain.errors import ModelError, RunError, SpecError
from wholegrain.models.backbone import read_backbone
from wholegrain.report.run_reader import read_run
from wholegrain.report.wording import conditions
from wholegrain.runs.pretraining import load_pretraining, pretrain
from wholegrain.runs.runner import execute, in_process, open_guard, prepare
from wholegrain.runs.spec import RunSpec, load
from wholegrain.silo.training import Silo

pytestmark = pytest.mark.usefixtures("coarse_prices")

PUBLIC = """
public = "{public}"
[data]
source = "glyphs"
options = {{ writers = 12, items = 10, classes = 3, seed = 7 }}
[model]
name = "upright_cnn"
options = {{ width = 4, code = 6 }}
[training]
batch_size = 16
"""
PRIVATE = """
[data]
source = "glyphs"
options = { writers = 20, items = 8, classes = 3 }
[silos]
partition = "uniform"
count = 2
[model]
name = "upright_cnn"
options = { width = 4, code = 6 }
start = "b.safetensors"
train = "head"
[policy]
name = "subject_dp"
rate = 1.0
[privacy]
epsilon = 4.0
noise_multiplier = 6.0
[rounds]
count = 3
steps = 1
"""


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a backbone and a spec that starts from it."""
    folder = tmp_path_factory.mktemp("specs")
    (folder / "public.toml").write_text(PUBLIC.format(public="drawn from typefaces"))
    pretrain(load_pretraining(folder / "public.toml")).write(folder / "b.safetensors")
    (folder / "spec.toml").write_text(PRIVATE)
    return folder


def spec(folder: Path, *changes: str) -> RunSpec:
    return load(folder / "spec.toml", changes)


def trained(asked: RunSpec, **changes: Any) -> Mapping[str, Any]:
    prepared = prepare(asked, pricing=PRICING)
    prepared = replace(prepared, **{name: change(prepared) for name, change in changes.items()})
    with open_guard(prepared, "run") as guard:
        run = execute(prepared, guard)
    return {"vector": run.vector, "scores": run.scores, "model": run.model}


@pytest.mark.slow
def test_pretraining_depends_on_the_spec_alone_and_says_what_it_used(specs: Path) -> None:
    first, again = (pretrain(load_pretraining(specs / "public.toml")) for _ in range(2))
    assert first.digest == again.digest == read_backbone(specs / "b.safetensors").digest
    assert pretrain(load_pretraining(specs / "public.toml", ("seed=1",))).digest != first.digest
    assert first.facts["public"] == "drawn from typefaces"
    assert (first.facts["data"], first.facts["items"], first.facts["subjects"]) == ("glyphs", 120, 12)
    assert 0 <= first.facts["accuracy"] <= 1


def test_whitening_is_fitted_and_undone_by_the_head(specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = read_backbone(specs / "b.safetensors")
    monkeypatch.setattr("wholegrain.runs.pretraining._whiten", lambda model, data: None)
    plain = pretrain(load_pretraining(specs / "public.toml"))
    assert not torch.equal(fitted.tensors["12.matrix"], plain.tensors["12.matrix"])
    x = torch.rand(5, 784, generator=torch.Generator().manual_seed(0))
    outputs = []
    for backbone in (fitted, plain):
        module = prepare(spec(specs), pricing=PRICING).model
        backbone.load_into(module, "upright_cnn")
        outputs.append(module(x).detach())
    assert torch.allclose(*outputs, atol=1e-3)


def test_patterns_freeze_what_they_do_not_name(specs: Path, tmp_path: Path) -> None:
    asked = spec(specs, 'model.train=["13.bias", "10.*"]')
    backbone = read_backbone(specs / "b.safetensors").tensors
    after = trained(asked)["model"].state_dict()
    moved = {name for name, value in backbone.items() if not torch.equal(after[name], value)}
    assert moved == {"13.bias", "10.weight", "10.bias"}
    text = PRIVATE.replace('"head"', '["13.bias", "10.*"]').replace("b.saf", f"{specs}/b.saf")
    (tmp_path / "spec.toml").write_text(text)
    start(tmp_path / "run", tmp_path / "spec.toml")
    words = dict(conditions(read_run(tmp_path / "run", "run")))["Public"]
    assert "Trained here: what is called 13.bias or 10.*, " in words


@pytest.mark.parametrize("train", ["head", "all", "low_rank"])
def test_a_run_starts_where_the_backbone_ended(specs: Path, train: str) -> None:
    prepared = prepare(spec(specs, f"model.train={train}"), pricing=PRICING)
    x = torch.rand(4, 784, generator=torch.Generator().manual_seed(0))
    whole = prepare(spec(specs, "model.train=all"), pricing=PRICING).model
    assert torch.equal(prepared.model(x), whole(x))
    assert prepared.public.trained_parameters == prepared.first.numel()


@pytest.mark.slow
def test_a_cached_view_gives_what_the_whole_model_gives(specs: Path) -> None:
    """Frozen parameters are no part of the vector: with the view or without, the same steps come out."""

    def without(prepared: Any) -> Mapping[str, Silo]:
        return {name: replace(silo, view=None) for name, silo in prepared.silos.items()}

    def whole(prepared: Any) -> BookKeeping:
        return BookKeeping(prepared.model, torch.nn.functional.cross_entropy)

    asked = spec(specs, "evaluation.test=0")
    viewed, plain = trained(asked), trained(asked, silos=without, clipped_sum=whole)
    assert viewed["vector"].shape == (6 * 3 + 3,)
    assert torch.allclose(viewed["vector"], plain["vector"], atol=1e-5)


@pytest.mark.parametrize("train", ["head", "low_rank"])
def test_what_is_frozen_stays_and_the_head_moves(specs: Path, train: str) -> None:
    backbone = read_backbone(specs / "b.safetensors").tensors
    after = trained(spec(specs, f"model.train={train}"))["model"].state_dict()
    for name, value in backbone.items():
        frozen = name if name in after else name.replace(".weight", ".base.weight").replace(".bias", ".base.bias")
        assert torch.equal(after[frozen], value) is not name.startswith("13.")


def test_a_resumed_run_gives_the_same_model_and_saves_it_whole(specs: Path, tmp_path: Path) -> None:
    start(tmp_path / "whole", specs / "spec.toml")
    stop_after(tmp_path / "stopped", 2, specs / "spec.toml")
    resume(tmp_path / "stopped")
    assert model(tmp_path / "whole") == model(tmp_path / "stopped")
    saved = load_file(tmp_path / "whole" / "model.safetensors")
    assert set(saved) == set(read_backbone(specs / "b.safetensors").tensors)


def test_a_run_goes_on_only_with_the_backbone_that_it_began_with(specs: Path, tmp_path: Path) -> None:
    for name in ("spec.toml", "b.safetensors"):
        (tmp_path / name).write_bytes((specs / name).read_bytes())
    stop_after(tmp_path / "run", 1, tmp_path / "spec.toml")
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(SpecError, match="There is no backbone"):
        resume(tmp_path / "run")
    pretrain(load_pretraining(specs / "public.toml", ("seed=1",))).write(tmp_path / "b.safetensors")
    with pytest.raises(RunError, match="backbone is not the one"):
        resume(tmp_path / "run")
    (tmp_path / "b.safetensors").write_bytes((specs / "b.safetensors").read_bytes())
    resume(tmp_path / "run")


def test_the_guarantee_says_what_was_public(specs: Path, tmp_path: Path) -> None:
    start(tmp_path / "run", specs / "spec.toml")
    words = dict(conditions(read_run(tmp_path / "run", "run")))["Public"]
    digest = json.loads((tmp_path / "run" / "public.json").read_text())["digest"]
    for part in (digest[:16], "'glyphs'", "drawn from typefaces", "its last layer, 21 of"):
        assert part in words


def test_a_run_without_a_start_says_that_nothing_but_settings_was_public(proved_words: str) -> None:
    assert proved_words == "the settings, and first parameters drawn from the seed alone"


@pytest.fixture
def proved_words(tmp_path: Path) -> str:
    start(tmp_path / "plain")
    return dict(conditions(read_run(tmp_path / "plain", "plain")))["Public"]


def test_frozen_parts_of_a_model_of_ones_own_are_seen_through() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(10, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    run = wg.train(
        wg.clinics(patients=40, clinics=2, span=2),
        model=module,
        policy={"name": "fedavg", "rate": 0.5},
        rounds={"count": 2},
    )
    assert run.vector.shape == (12,)
    assert torch.equal(run.model[0].weight, before)


@pytest.mark.parametrize("train", [["2.*"], "head", "low_rank"])
def test_a_module_of_ones_own_is_trained_in_part_and_stays_as_it_is(train: Any, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(10, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = wg.train(
        wg.clinics(patients=40, clinics=2, span=2),
        module,
        model={"train": train, "rank": 1},
        policy={"name": "fedavg", "rate": 0.5},
        rounds={"count": 2},
        out=tmp_path / "run",
    )
    assert run.vector.numel() == 12 + (15 if train == "low_rank" else 0)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())
    again = wg.load(tmp_path / "run", module).model
    x = torch.rand(3, 10)
    assert torch.equal(again(x), run.model(x))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("model.start=absent.safetensors", "There is no backbone"),
        ("model.start=spec.toml", "cannot be read"),
        ("model.train=half", r"model\.train: .*one of all, head, low_rank, biases, prefix"),
        ("model.train=heads", "did you mean 'head'"),
        ("model.train=[]", "1 to 1000 patterns"),
        ('model.train=["14.*"]', r"No parameter is called '14\.\*' \(did you mean '.\.\*'"),
        ("model.train=prefix", "no attention layer that takes a prefix"),
        ("model.prefix=0", "model.prefix"),
        ("model.rank=0", "model.rank"),
        ("model.options.code=7", "does not fit the model 'upright_cnn'"),
        ("data.options.classes=4", "does not fit the model 'upright_cnn'"),
    ],
)
def test_what_cannot_be_started_from_is_refused(
    specs: Path, change: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(specs)
    with pytest.raises(wg.WholegrainError, match=why):
        prepare(spec(specs, change), pricing=PRICING)


def test_freezing_random_parameters_is_refused() -> None:
    with pytest.raises(SpecError, match=r"needs model\.start"):
        prepare(RunSpec.of({"data": {"source": "clinics"}, "model": {"name": "mlp", "train": "head"},
                            "policy": {"name": "fedavg", "rate": 0.1}}))  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("public=no", "public"),
        ("training.passes=0", "training.passes"),
        ("training.epochs=3", "unknown key 'training.epochs'"),
        ("model.train=head", "trained whole"),
    ],
)
def test_a_bad_pretraining_is_refused(specs: Path, change: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        load_pretraining(specs / "public.toml", (change,))


def test_pretraining_that_leaves_the_numbers_is_refused(specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.runs.pretraining._schedule", lambda step, steps: float("nan"))
    with pytest.raises(ModelError, match="not all finite"):
        pretrain(load_pretraining(specs / "public.toml"))


def test_in_process_silos_compute_their_view_once(specs: Path) -> None:
    prepared = prepare(spec(specs), pricing=PRICING)
    engine = in_process(prepared)
    silo = next(iter(engine.silos.values()))
    assert silo.inputs.shape == (silo.data.items, 6)
    assert silo.inputs is silo.inputs


def test_the_recipes_fit_each_other() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    public, private = load_pretraining(folder / "handwriting_backbone.toml"), load(folder / "mnist_writers_best.toml")
    assert private.model.start == str(folder / "handwriting.safetensors")
    assert (public.model.name, public.model.options) == (private.model.name, private.model.options)
    assert public.data.options["classes"] == 10
    assert (private.privacy.epsilon, private.privacy.delta, private.silos.count) == (4.0, 1e-5, 16)
    assert private.silos.span is None


TEXT_START = """
public = "written for this test"
[data]
source = "documents"
options = { path = "public.txt", window = 11, stride = 11 }
[model]
name = "whitened_lstm"
options = { hidden = 16, embedding = 8 }
[training]
passes = 60
learning_rate = 0.05
batch_size = 8
smoothing = 0.0
held_out = 0.3
"""
TEXT_RUN = (
    PRIVATE.replace('"glyphs"', '"babble"')
    .replace("{ writers = 20, items = 8, classes = 3 }", "{ speakers = 12, characters = 40, window = 12, stride = 6 }")
    .replace('"upright_cnn"', '"whitened_lstm"')
    .replace("{ width = 4, code = 6 }", "{ hidden = 16, embedding = 8 }")
    .replace("b.safetensors", "text.safetensors")
    .replace("count = 3", "count = 1")
)


OF_DOCUMENTS = '{ path = "private.txt", window = 12, stride = 6, every_position = true }'


def test_text_is_learnt_from_every_position_and_starts_a_private_run(tmp_path: Path) -> None:
    """A text that repeats "abcd": from the last position of four windows alone it would not be learnt so soon."""
    (tmp_path / "public.txt").write_text("\f".join("abcd" * count for count in range(8, 14)))
    (tmp_path / "text.toml").write_text(TEXT_START)
    backbone = pretrain(load_pretraining(tmp_path / "text.toml"))
    assert backbone.facts["accuracy"] == 1.0
    backbone.write(tmp_path / "text.safetensors")
    (tmp_path / "spec.toml").write_text(TEXT_RUN)
    prepared = prepare(spec(tmp_path), pricing=PRICING)
    assert sum(p.numel() for p in prepared.model.parameters() if p.requires_grad) == 17 * prepared.task.outputs
    assert trained(spec(tmp_path))


@pytest.mark.parametrize("part", ["head", "biases", "low_rank", "all"])
def test_a_transformer_starts_from_text_and_learns_from_every_position(tmp_path: Path, part: str) -> None:
    made = '"causal_transformer"', "{ width = 16, heads = 2, layers = 1"
    (tmp_path / "public.txt").write_text("\f".join("abcd" * count for count in range(8, 14)))
    start = TEXT_START.replace("window = 11, stride = 11", "window = 12, stride = 11")
    start = start.replace('"whitened_lstm"', made[0]).replace("{ hidden = 16, embedding = 8", made[1])
    (tmp_path / "text.toml").write_text(start)
    more = ("training.learning_rate=0.02", "training.passes=200")
    backbone = pretrain(load_pretraining(tmp_path / "text.toml", more))
    assert backbone.facts["accuracy"] == 1.0
    backbone.write(tmp_path / "text.safetensors")
    (tmp_path / "private.txt").write_text("\f".join("abdc" * count for count in range(8, 20)))
    changed = (
        TEXT_RUN.replace('"babble"', '"documents"')
        .replace("{ speakers = 12, characters = 40, window = 12, stride = 6 }", OF_DOCUMENTS)
        .replace('"whitened_lstm"', made[0])
        .replace("{ hidden = 16, embedding = 8", f"{made[1]}, every_position = true")
        .replace('train = "head"', f'train = "{part}"')
    )
    (tmp_path / "spec.toml").write_text(changed)
    assert 0 <= trained(spec(tmp_path))["scores"]["test"].metrics["accuracy"] <= 1


def test_spare_numbers_and_every_position_in_a_private_run(tmp_path: Path) -> None:
    """The start computes what it would without spare numbers; a run moves these and the last layer alone."""
    (tmp_path / "public.txt").write_text("\f".join("abcd" * count for count in range(8, 14)))
    (tmp_path / "text.toml").write_text(TEXT_START.replace("embedding = 8", "embedding = 8, spare = 2"))
    backbone = pretrain(load_pretraining(tmp_path / "text.toml"))
    assert backbone.facts["accuracy"] == 1.0
    assert not backbone.tensors["0.spare.weight"].any()
    backbone.write(tmp_path / "text.safetensors")
    (tmp_path / "private.txt").write_text("\f".join("abdc" * count for count in range(8, 20)))
    changed = (
        TEXT_RUN.replace('"babble"', '"documents"')
        .replace("{ speakers = 12, characters = 40, window = 12, stride = 6 }", OF_DOCUMENTS)
        .replace("embedding = 8", "embedding = 8, spare = 2, every_position = true")
        .replace('train = "head"', 'train = ["0.spare.weight", "2.*"]')
    )
    (tmp_path / "spec.toml").write_text(changed)
    found = trained(spec(tmp_path))
    assert 0 <= found["scores"]["test"].metrics["accuracy"] <= 1
    after = found["model"].state_dict()
    moved = {name for name, value in backbone.tensors.items() if not torch.equal(after[name], value)}
    assert moved == {"0.spare.weight", "2.weight", "2.bias"}
    (tmp_path / "spec.toml").write_text(changed.replace("spare = 2, every_position = true", "spare = 2"))
    with pytest.raises(SpecError, match="scores one position"):
        prepare(spec(tmp_path), pricing=PRICING)


@pytest.mark.parametrize("side", ["data", "model"])
def test_a_start_of_text_is_not_asked_for_every_position(tmp_path: Path, side: str) -> None:
    (tmp_path / "text.toml").write_text(TEXT_START)
    with pytest.raises(SpecError, match="leave out every_position"):
        load_pretraining(tmp_path / "text.toml", (f"{side}.options.every_position=true",))


def test_a_spec_of_a_run_is_no_pretraining(specs: Path) -> None:
    (specs / "private.toml").write_text('[data]\nsource = "clinics"')
    with pytest.raises(
        SpecError, match=r"private\.toml' is none of wholegrain pretrain: it has no `public`, the sentence"
    ):
        load_pretraining(specs / "private.toml")


def test_public_numbers_are_not_for_a_model_of_tokens(specs: Path) -> None:
    with pytest.raises(SpecError, match="The data is numbers, and the model 'bigram' reads tokens"):
        pretrain(load_pretraining(specs / "public.toml", ("model.name=bigram", "model.options={}")))


def test_public_text_that_is_typed_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "text.toml").write_text(TEXT_START)
    monkeypatch.chdir(tmp_path)
    for change, folder in ((), tmp_path / "specs"), (("data.options.path=public.txt",), tmp_path):
        spec = load_pretraining(tmp_path / "specs" / "text.toml", change)
        assert spec.data.options["path"] == str(folder / "public.txt")


def test_nobody_to_measure_on_is_refused(tmp_path: Path) -> None:
    (tmp_path / "public.txt").write_text("abcd" * 20)
    (tmp_path / "text.toml").write_text(TEXT_START)
    with pytest.raises(SpecError, match="1 of 1 subjects"):
        pretrain(load_pretraining(tmp_path / "text.toml", ("training.held_out=0.999999",)))
    with pytest.raises(SpecError, match=r"raise training\.held_out"):
        pretrain(load_pretraining(tmp_path / "text.toml", ("training.held_out=0.000001",)))


def test_the_recipes_with_spare_numbers_fit_each_other() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    public, private = load_pretraining(folder / "plays_spare_backbone.toml"), load(folder / "plays_spare.toml")
    assert private.model.options == {**public.model.options, "every_position": True}
    assert private.data.options["every_position"] is True
    assert private.model.name == public.model.name


def test_the_recipe_for_text_is_a_pretraining() -> None:
    asked = load_pretraining(Path(__file__).parents[2] / "recipes" / "text_backbone.toml")
    assert (asked.data.source, asked.model.name) == ("documents", "whitened_lstm")
