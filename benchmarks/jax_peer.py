"""jax_privacy as a contestant: a jitted step of `clipped_grad`, noise and update, in an environment of its own.

Started by arena.py with the interpreter that the variable JAX_PYTHON names; it has jax and jax_privacy, and need not
have torch:

    python -m venv jax && jax/bin/pip install jax==0.10.2 jax_privacy==2.0.0
    JAX_PYTHON=jax/bin/python python benchmarks/gradients.py --models mlp256 transformer64

Parameters, batch and groups come in a file; jax_models.py has the models. Of the sizes of microbatches that fit into
memory the fastest is used: they are tried from the smallest on, until one is clearly slower than the best before it.
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

from jax_models import MODELS
from settings import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MICROBATCHES = (4, 8, 16, 32, 64, None)
MOST_VALUES = 1 << 28
"""Of gradients of single items, or subjects, at a time: 1 GiB."""
TRIED = 5
SLOW = 0.2
CLEARLY = 1.1


class JaxSteps:
    """One contestant's parameters and its compiled step."""

    def __init__(self, case: str, subjects: bool, given: Any) -> None:
        self.names = [str(name) for name in given["names"]]
        values = {
            key.removeprefix("parameter "): jnp.asarray(given[key]) for key in given if key.startswith("parameter ")
        }
        self.parameters = {name: values.pop(name) for name in self.names}
        self.frozen = values
        self.key, self.subjects = jax.random.key(0), subjects
        inputs, targets, groups = given["inputs"], given["targets"], given["groups"]
        self.batch = _by_subject(inputs, targets, groups) if subjects else (inputs, targets, np.ones(len(targets)))
        self.batch = tuple(jnp.asarray(each) for each in self.batch)
        self.model = MODELS[case]
        self.divisor = float(len(self.batch[1]))
        self.sum, self.move = self._fastest()

    def gradient(self) -> np.ndarray[Any, Any]:
        """The clipped sum, in the order of `names`."""
        found = self.sum(self.parameters, *self.batch)
        return np.concatenate([np.asarray(found[name]).ravel() for name in self.names])

    def step(self) -> None:
        """One private step, to its end."""
        self.parameters, self.key = jax.block_until_ready(self.move(self.parameters, self.key, *self.batch))

    def _loss(self, parameters: dict[str, Any], inputs: Any, targets: Any, counts: Any) -> Any:
        """The mean over one item, or over those places of a subject that are filled."""
        logs = jax.nn.log_softmax(self.model({**self.frozen, **parameters}, inputs))
        own = -jnp.take_along_axis(logs, targets[:, None], 1)[:, 0]
        return (own * counts).sum() / counts.sum()

    def _fastest(self) -> tuple[Any, Any]:
        """The step with the best microbatch. Compiling takes minutes, so that nobody looks beyond the valley."""
        best, least = None, float("inf")
        for size in self._microbatches():
            compiled = self._compile(size)
            seconds = self._seconds(compiled)
            if seconds > CLEARLY * least:
                break
            if seconds < least:
                best, least = compiled, seconds
        assert best is not None
        return best

    def _microbatches(self) -> list[int | None]:
        """Pieces of a batch must be of one size, and their gradients fit into memory."""
        units, values = len(self.batch[1]), sum(value.size for value in self.parameters.values())
        return [m for m in MICROBATCHES if units % (m or 1) == 0 and (m or units) * values <= MOST_VALUES]

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
        taken = list[float]()
        while len(taken) < TRIED and sum(taken) < TRIED * SLOW:
            started = time.process_time()
            jax.block_until_ready(compiled[1](self.parameters, self.key, *self.batch))
            taken.append(time.process_time() - started)
        return min(taken)


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
