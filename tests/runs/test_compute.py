"""Where and in which precision a run computes: what is refused, what is on record, and what is proved of it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from command import Command
from compilers import require_compiler
from small_runs import SPEC, Stopped, secure_spec, write_spec
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.rounding import SLACK
from wholegrain.clipping.trial_items import perturb
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.deploy.charter import Charter
from wholegrain.deploy.model_agreement import agree
from wholegrain.errors import SpecError
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.runs import computing
from wholegrain.runs.planning import check_early, plan_federation, plan_for
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec, load
from wholegrain.silo import c_library
from wholegrain.silo.noise import SeededNoise

CLINICS: dict[str, Any] = {
    "data": {"source": "clinics", "options": {"patients": 40, "clinics": 2, "span": 2, "visits": 4}},
    "policy": {"name": "subject_dp", "rate": 0.5},
    "privacy": {"noise_multiplier": 6.0},
    "rounds": {"count": 2, "steps": 2},
}

DECLARED = {"sizes": {f"clinic-{number}": {"items": 100, "subjects": 30} for number in range(2)}}


def spec(**compute: str | bool) -> RunSpec:
    return RunSpec.of(CLINICS | {"compute": compute})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["compute.device=gpu"], "compute.device"),
        (["compute.precision=float8"], "compute.precision"),
        (["compute.device=cuda"], "finds no such device on this machine"),
        (["compute.device=mps"], "finds no such device on this machine"),
        (["compute.precision=float16"], "'float16' is for a GPU"),
        (["compute.compiled=true"], "compute.compiled = true needs a C compiler, and this machine has none"),
        (["compute.compiled=true", "compute.precision=bfloat16"], "compute.compiled = true is for the CPU in float32"),
    ],
)
def test_what_is_not_there_gets_one_sentence(
    changes: list[str], sentence: str, wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(computing, "load_library", c_library.load_library.__wrapped__)
    sets = [word for change in changes for word in ("--set", change)]
    found = wholegrain("run", str(write_spec(tmp_path)), "--out", str(tmp_path / "run"), *sets)
    assert found.code == 2
    assert sentence in " ".join(found.err.split())
    assert "Traceback" not in found.err
    assert not (tmp_path / "run").exists()


def test_specs_of_earlier_versions_keep_their_digest() -> None:
    assert RunSpec.of(CLINICS).digest == spec(device="cpu", precision="float32").digest
    assert "device" not in RunSpec.of(CLINICS).model_dump_json()
    assert "compiled" not in spec(compiled=False).model_dump_json()
    others = {spec(precision="bfloat16").digest, spec(device="cuda").digest, spec(device="mps").digest}
    assert len(others | {RunSpec.of(CLINICS).digest, spec(compiled=True).digest}) == 5


def test_the_usual_run_keeps_its_engine() -> None:
    assert isinstance(prepare(spec()).clipped_sum.engine, BookKeeping)
    assert isinstance(prepare(spec(precision="bfloat16")).clipped_sum.engine, UnitPasses)


def test_half_precision_trains_nearly_the_same_model_and_the_record_says_so(
    wholegrain: Command, tmp_path: Path
) -> None:
    """The same coins, the same noise, and sums that differ by the rounding of products."""
    vectors = {}
    for precision in ("float32", "bfloat16"):
        folder = tmp_path / precision
        given = ("--out", str(folder), "--set", f"compute.precision={precision}")
        assert wholegrain("run", str(write_spec(tmp_path)), *given).code == 0
        vectors[precision] = RunFolder.open(folder)._checkpoints.latest(99, torch.zeros(22)).vector
        assert json.loads((folder / "run.json").read_text())["compute"] == f"cpu, {precision}"
        (promise,) = [g for g in RunFolder.open(folder).plan.guarantees if g.unit is Unit.SUBJECT]
        assert promise.standing is Standing.PROVED
    apart = vectors["float32"] - vectors["bfloat16"]
    assert 0 < float(apart.norm()) < 0.02 * float(vectors["float32"].norm())


def test_compiled_noise_is_on_record(wholegrain: Command, tmp_path: Path) -> None:
    require_compiler()
    vectors = {}
    for compiled in ("false", "true"):
        folder = tmp_path / compiled
        given = ("--out", str(folder), "--set", f"compute.compiled={compiled}")
        assert wholegrain("run", str(write_spec(tmp_path)), *given).code == 0
        vectors[compiled] = RunFolder.open(folder)._checkpoints.latest(99, torch.zeros(22)).vector
        expected = "cpu, float32, noise compiled" if compiled == "true" else "cpu, float32"
        assert json.loads((folder / "run.json").read_text())["compute"] == expected
        (promise,) = [g for g in RunFolder.open(folder).plan.guarantees if g.unit is Unit.SUBJECT]
        assert promise.standing is Standing.PROVED
    assert not torch.equal(vectors["false"], vectors["true"]), "they have noise of their own"


@pytest.mark.parametrize(("noise", "said"), [("seeded", "cpu, float32, noise compiled"), ("secure", "cpu, float32")])
def test_seeded_noise_is_compiled_and_secure_noise_is_not(noise: str, said: str) -> None:
    require_compiler()
    asked = CLINICS | {"compute": {"compiled": True}, "privacy": CLINICS["privacy"] | {"noise": noise}}
    if noise == "secure":
        asked |= {"silos": DECLARED, "ledger": {"data": "clinic"}}
    prepared = prepare(RunSpec.of(asked))
    assert isinstance(prepared.clipped_sum.engine, BookKeeping)
    assert str(prepared.compute) == said
    assert prepared.noise == SeededNoise(prepared.spec.seed, in_c=True) or not prepared.noise.repeats


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.parametrize(
    ("change", "said"), [("precision=bfloat16", "cpu, bfloat16"), ("compiled=true", "cpu, float32, noise compiled")]
)
def test_a_plan_says_where_a_run_would_compute(change: str, said: str, wholegrain: Command, tmp_path: Path) -> None:
    require_compiler()
    priced = ("--set", "privacy.noise_multiplier=null", "--set", "privacy.epsilon=4")
    for way in ((), ("--optimise",)):
        plan = partial(wholegrain, "plan", write_spec(tmp_path), *way, *priced)
        assert f"Computes on {said}." in plan("--set", f"compute.{change}").out
        assert json.loads(plan("--set", f"compute.{change}", "--json").out)["compute"] == said
        assert "Computes on" not in plan().out


def test_removing_a_patient_from_a_run_moves_its_sums_by_the_clip_norm_at_most() -> None:
    """The clip theorem through a whole silo: drawn, gathered, clipped and summed, at extreme parameters too."""
    prepared = prepare(spec())
    silo = next(iter(prepared.silos.values()))
    policy = prepared.plan.policy_for(silo.facts.name)
    inputs, targets, codes = silo.inputs, silo.targets, torch.from_numpy(silo.data.subjects)
    largest = 0.0
    for scale in (1.0, 1e30, 1e-30):
        vector = perturb(prepared.first) * scale
        whole = prepared.clipped_sum(vector, inputs, targets, codes, policy.clip).total
        for subject in torch.unique(codes)[:10].tolist():
            others = codes != subject
            rest = prepared.clipped_sum(vector, inputs[others], targets[others], codes[others], policy.clip).total
            moved = float(torch.linalg.vector_norm(whole - rest))
            assert moved <= policy.clip.norm * (1 + SLACK)
            largest = max(largest, moved)
    assert largest > 0.99 * policy.clip.norm, "nothing was clipped, so nothing was tested"


@pytest.mark.parametrize(("key", "value"), [("precision", "bfloat16"), ("compiled", True)])
def test_a_run_goes_on_as_it_began(key: str, value: object, wholegrain: Command, tmp_path: Path) -> None:
    """Its spec is in its folder; another one is another run."""
    require_compiler()
    path, whole, part = write_spec(tmp_path), tmp_path / "whole", tmp_path / "part"
    half = ("--set", f"compute.{key}={str(value).lower()}")
    assert wholegrain("run", str(path), "--out", str(whole), *half).code == 0
    prepared = prepare(load(path, (half[1],)))
    kept = RunFolder.create(part, prepared)

    def stop(done: Any, state: Any) -> None:
        kept.add_round(done, state, 1)
        raise Stopped

    with kept.lock(), open_guard(prepared, kept.run, part, create=False) as guard, pytest.raises(Stopped):
        execute(prepared, guard, record=stop)
    changed = json.loads((part / "spec.json").read_text())
    assert changed["compute"].pop(key) == value
    began = (part / "spec.json").read_text()
    (part / "spec.json").write_text(json.dumps(changed))
    found = wholegrain("resume", str(part))
    assert found.code == 2
    assert "is not the one that the run was started with" in " ".join(found.err.split())
    (part / "spec.json").write_text(began)
    assert wholegrain("resume", str(part)).code == 0
    models = [(folder / "model.safetensors").read_bytes() for folder in (whole, part)]
    assert models[0][-88:] == models[1][-88:]  # the parameters, to the bit


@pytest.fixture
def facts() -> tuple[Any, ...]:
    return tuple(facts for _, facts in prepare(spec()).plan.rows)


def test_what_is_proved_on_each_device(facts: tuple[Any, ...]) -> None:
    planned = {device: plan_for(spec(device=device), facts, DEFAULT) for device in ("cpu", "cuda", "mps")}
    found = {device: plan.guarantee(Unit.SUBJECT) for device, plan in planned.items()}
    assert found["cpu"].standing is found["cuda"].standing is Standing.PROVED
    assert found["cpu"].epsilon == found["cuda"].epsilon
    assert "same bits in every call" in found["cuda"].because
    assert "same bits" not in found["cpu"].because
    assert found["mps"].standing is Standing.NONE
    assert found["mps"].epsilon == math.inf
    assert "differ from call to call" in found["mps"].because
    assert {g.standing for g in planned["mps"].guarantees} == {Standing.NONE}


def test_nothing_is_released_from_a_device_of_which_nothing_is_proved(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"'mps' is for simulations.*use 'cpu' or 'cuda'"):
        check_early(load(secure_spec(tmp_path), ("compute.device=mps",)))


def test_a_server_leaves_it_to_its_silos() -> None:
    silos = [{"name": name, "items": 100, "subjects": 20, "items_per_subject": 3} for name in ("a", "b")]
    tree = CLINICS | {"federation": {"shape": [3], "classes": 2, "silos": silos}, "compute": {"device": "cuda"}}
    del tree["data"]
    asked = RunSpec.of(tree)
    assert asked.federation is not None
    with pytest.raises(SpecError, match=r"in their own silo\.toml"):
        plan_federation(asked, asked.federation, DEFAULT)
    asked = RunSpec.of(tree | {"compute": {"compiled": True}})
    with pytest.raises(SpecError, match=r"in their own silo\.toml"):
        plan_federation(asked, asked.federation, DEFAULT)  # type: ignore[arg-type]


@pytest.fixture
def charter() -> Callable[..., Charter]:
    def made(noise: str, **compute: str | bool) -> Charter:
        return Charter.model_validate(
            {
                "silo": "north",
                "data": CLINICS["data"],
                "limit": {
                    "epsilon": 4.0,
                    "items_per_subject": 4,
                    "smallest_noise": 1.0,
                    "largest_clip": 1.0,
                    "noise": noise,
                },
                "sizes": {"items": 60, "subjects": 20},
                "allow": {"models": [{"name": "logistic"}]},
                "ledger": {"data": "clinic"},
                "compute": compute,
            }
        )

    return made


def test_a_silo_computes_where_its_charter_says(charter: Callable[..., Charter]) -> None:
    prepared = prepare(spec())
    silo = replace(next(iter(prepared.silos.values())), view=None)
    dataset: Any = type("Data", (), {"features": 10, "task": prepared.task})()
    (usual,) = agree(charter("secure"), dataset, silo, None)  # type: ignore[arg-type]
    assert isinstance(usual.gradients.engine, BookKeeping)
    (half,) = agree(charter("secure", precision="bfloat16"), dataset, silo, None)  # type: ignore[arg-type]
    assert isinstance(half.gradients.engine, UnitPasses)
    assert half.gradients.engine.compute == Compute.of("cpu", "bfloat16")
    with pytest.raises(SpecError, match="'mps' is for simulations"):
        agree(charter("secure", device="mps"), dataset, silo, None)  # type: ignore[arg-type]


def test_the_keys_can_be_written_in_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC + '[compute]\ndevice = "cuda"\nprecision = "bfloat16"\n')
    assert load(path).compute.device == "cuda"
    assert load(path).compute.precision == "bfloat16"
