"""A trained model as ONNX: it answers as the model does, and carries its pipeline."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import wholegrain as wg
from command import Command
from visit_tables import data

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")), reason="needs the extra onnx"
)


def train(out: Path) -> wg.Run:
    return wg.train(data(), policy="fedavg", rounds=2, learning_rate=1.0, out=out)


def test_the_extra_is_named(wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = wholegrain("export", tmp_path, "--onnx", tmp_path / "model.onnx")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install 'wholegrain[onnx]'" in done.err


def test_another_ending_is_refused(wholegrain: Command, tmp_path: Path) -> None:
    done = wholegrain("export", tmp_path, "--onnx", tmp_path / "model.pt")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert ".onnx" in done.err


@needs_onnx
@pytest.mark.slow
def test_the_file_answers_as_the_model_does(wholegrain: Command, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    run, path = train(tmp_path / "run"), tmp_path / "model.onnx"
    done = wholegrain("export", tmp_path / "run", "--onnx", path)
    assert done.code == 0, done.err
    assert done.err == ""
    content = onnx.load(path)
    inputs = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    (found,) = reference.ReferenceEvaluator(content).run(None, {"inputs": inputs})
    with torch.no_grad():
        assert np.allclose(found, run.model(torch.from_numpy(inputs)).numpy(), atol=1e-5)
    facts = json.loads({each.key: each.value for each in content.metadata_props}["wholegrain"])
    assert facts["inputs"] == ["age", "pressure", "sex = f", "sex = m"]
    assert facts["task"]["classes"] == ["no", "yes"]
