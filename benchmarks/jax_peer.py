"""jax_privacy as a contestant: a jitted step of `clipped_grad`, noise and update, in an environment of its own.

Started by arena.py with the interpreter that the variable JAX_PYTHON names; it has jax and jax_privacy, and need not
have torch:

    python -m venv jax && jax/bin/pip install jax==0.10.2 jax_privacy==2.0.0
    JAX_PYTHON=jax/bin/python python benchmarks/gradients.py --models mlp256 transformer64

Parameters, batch and groups come in a file. Models are written out below, so that only those take part. Of all sizes of
microbatches the fastest is used.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import clipped_grad

from settings import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MICROBATCHES = (None, 8, 16, 32, 64)
TRIED = 5
HEADS, LAYERS, EPSILON = 4, 2, 1e-5


def mlp(p: dict[str, Any], x: Any) -> Any:
    """16-64-2 with tanh [item, feature]."""
    return jnp.tanh(x @ p["1.weight"].T + p["1.bias"]) @ p["3.weight"].T + p["3.bias"]


def transformer(p: dict[str, Any], tokens: Any) -> Any:
    """Embedding, torch's encoder layers (norm last, relu), mean, linear [item, position]."""
    x = p["0.weight"][tokens]
    for k in range(1, LAYERS + 1):
        x = _norm(x + _attend(p, f"{k}.self_attn.", x), p, f"{k}.norm1.")
        hidden = jax.nn.relu(x @ p[f"{k}.linear1.weight"].T + p[f"{k}.linear1.bias"])
        x = _norm(x + hidden @ p[f"{k}.linear2.weight"].T + p[f"{k}.linear2.bias"], p, f"{k}.norm2.")
    return x.mean(1) @ p["4.weight"].T + p["4.bias"]


def _norm(x: Any, p: dict[str, Any], name: str) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return scaled * p[name + "weight"] + p[name + "bias"]


def _attend(p: dict[str, Any], name: str, x: Any) -> Any:
    items, positions, width = x.shape
    mapped = x @ p[name + "in_proj_weight"].T + p[name + "in_proj_bias"]
    split = mapped.reshape(items, positions, 3, HEADS, width // HEADS).transpose(2, 0, 3, 1, 4)
    scores = split[0] @ split[1].swapaxes(-1, -2) / np.sqrt(width // HEADS)
    seen = (jax.nn.softmax(scores, -1) @ split[2]).transpose(0, 2, 1, 3).reshape(items, positions, width)
    return seen @ p[name + "out_proj.weight"].T + p[name + "out_proj.bias"]


MODELS: dict[str, Callable[[dict[str, Any], Any], Any]] = {"mlp256": mlp, "transformer64": transformer}


class JaxSteps:
    """One contestant's parameters and its compiled step."""

    def __init__(self, case: str, subjects: bool, given: Any) -> None:
        self.names = [str(name) for name in given["names"]]
        self.parameters = {name: jnp.asarray(given[f"parameter {name}"]) for name in self.names}
        self.key, self.subjects = jax.random.key(0), subjects
        inputs, targets, groups = given["inputs"], given["targets"], given["groups"]
        self.batch = _by_subject(inputs, targets, groups) if subjects else (inputs, targets, np.ones(len(targets)))
        self.batch = tuple(jnp.asarray(each) for each in self.batch)
        self.model = MODELS[case]
        self.divisor = float(len(self.batch[1]))
        # Pieces of a batch must be of one size.
        sizes = [m for m in MICROBATCHES if m is None or len(self.batch[1]) % m == 0]
        self.sum, self.move = min((self._compile(size) for size in sizes), key=self._seconds)

    def gradient(self) -> np.ndarray[Any, Any]:
        """The clipped sum, in the order of `names`."""
        found = self.sum(self.parameters, *self.batch)
        return np.concatenate([np.asarray(found[name]).ravel() for name in self.names])

    def step(self) -> None:
        """One private step, to its end."""
        self.parameters, self.key = jax.block_until_ready(self.move(self.parameters, self.key, *self.batch))

    def _loss(self, parameters: dict[str, Any], inputs: Any, targets: Any, counts: Any) -> Any:
        """The mean over one item, or over those places of a subject that are filled."""
        logs = jax.nn.log_softmax(self.model(parameters, inputs))
        own = -jnp.take_along_axis(logs, targets[:, None], 1)[:, 0]
        return (own * counts).sum() / counts.sum()

    def _compile(self, microbatch: int | None) -> tuple[Any, Any]:
        # With `keep_batch_dim`, an item is a batch of one; a subject is a batch already.
        clipped = clipped_grad(
            self._loss,
            l2_clip_norm=CLIP_NORM,
            batch_argnums=(1, 2, 3),
            keep_batch_dim=not self.subjects,
            microbatch_size=microbatch,
        )

        def move(parameters: dict[str, Any], key: Any, *batch: Any) -> tuple[dict[str, Any], Any]:
            total = clipped(parameters, *batch)
            key, *keys = jax.random.split(key, len(parameters) + 1)
            std = NOISE_MULTIPLIER * CLIP_NORM
            noisy = {
                name: total[name] + std * jax.random.normal(one, total[name].shape)
                for name, one in zip(total, keys, strict=True)
            }
            moved = {name: parameters[name] - LEARNING_RATE / self.divisor * noisy[name] for name in parameters}
            return moved, key

        return jax.jit(clipped), jax.jit(move)

    def _seconds(self, compiled: tuple[Any, Any]) -> float:
        jax.block_until_ready(compiled[1](self.parameters, self.key, *self.batch))
        started = time.process_time()
        for _ in range(TRIED):
            jax.block_until_ready(compiled[1](self.parameters, self.key, *self.batch))
        return time.process_time() - started


def _by_subject(inputs: Any, targets: Any, groups: Any) -> tuple[Any, Any, Any]:
    """[subject, item, ...], filled up to the largest subject; and which places are filled."""
    counts = np.bincount(groups)
    place = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = len(counts), counts.max()
    wide = np.zeros((*shape, *inputs.shape[1:]), inputs.dtype)
    classes, filled = np.zeros(shape, targets.dtype), np.zeros(shape, np.float32)
    wide[groups, place], classes[groups, place], filled[groups, place] = inputs, targets, 1
    return wide, classes, filled


def _resident(entry: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{entry}:"))


def _answer(steps: JaxSteps, request: dict[str, Any], before: int) -> dict[str, Any]:
    if request["do"] == "gradient":
        np.save(request["path"], steps.gradient())
        return {}
    if request["do"] == "memory":
        return {"peak": _resident("VmHWM"), "grown": _resident("VmHWM") - before}
    clock = CLOCKS[request["clock"]]
    started = clock()
    for _ in range(request["times"]):
        steps.step()
    return {"seconds": clock() - started}


def main(case: str, contestant: str, path: str) -> None:
    """Answer the parent until it closes the pipe."""
    before, steps = _resident("VmRSS"), None
    for line in sys.stdin:
        try:
            steps = steps or JaxSteps(case, contestant.endswith("subject"), np.load(path))
            reply = _answer(steps, json.loads(line), before)
        except Exception as error:  # whatever it raises is a reason not to take part, for the parent to print
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
