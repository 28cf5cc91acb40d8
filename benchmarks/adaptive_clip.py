"""Does a clip norm that follows a private quantile help? Beside fixed norms, right and wrong by ten times.

Run: python benchmarks/adaptive_clip.py [--only nlswork …]

After Andrew et al. (2021): in each step a silo also counts its subjects whose gradient is no longer than C, less a half
for each subject, and adds noise of its own, z_b, to the count. A subject moves the sum by C and this count by a half,
so that both together cost what a sum alone does at the noise multiplier σ = (z⁻² + (2·z_b)⁻²)^(−1/2). Here z_b = 2σ,
and the sum gets 3 % more noise. The server takes the mean share of all silos, and C goes by exp(−η·(share − γ)). Steps
are lr·C₀/C times the noisy mean, so that a wrong norm is no wrong learning rate.

The models are linear in what they are shown: gradients are written down here instead of asked of the library. People
are held out as in benchmarks/planner.py. Results are kept in benchmarks/adaptive_clip.jsonl.
"""

import argparse
import itertools
import math
import statistics
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softmax

import held_out
import record
import utility
from held_out import Trial
from utility import LINEAR, Tree, trained

RESULTS = record.ROOT / "benchmarks" / "adaptive_clip.jsonl"
EPSILONS, SEEDS = (1.0, 4.0), (10, 11)
QUANTILE, SPEED = 0.3, 0.5
WRONG = (0.1, 1.0, 10.0)
# By data set: rounds for ε = 1 and 4, learning rate, clip norm.
SETTINGS = {"nlswork": ((30, 30), 8.0, 0.5), "plays": ((20, 20), 30.0, 0.1), "mnist": ((20, 60), 150.0, 0.03)}


def seen(inputs: Tensor) -> Tensor:
    """What a linear model is shown: features and a constant, or [item] which character came last."""
    if not inputs.is_floating_point():
        return inputs[:, -1].long()
    return torch.cat([inputs.flatten(1), torch.ones(len(inputs), 1)], 1)


def outputs(shown: Tensor, weights: Tensor) -> Tensor:
    return weights.T[shown] if shown.ndim == 1 else shown @ weights.T


def gradients(shown: Tensor, targets: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    """[subject, class · feature] the mean gradient of each subject."""
    errors = softmax(outputs(shown, weights), 1) - one_hot(targets, len(weights))
    count, features = int(groups.max()) + 1, weights.shape[1]
    if shown.ndim == 1:
        cells = torch.zeros(count * features, len(weights)).index_add_(0, groups * features + shown, errors)
        total = cells.view(count, features, -1).transpose(1, 2).flatten(1)
    else:
        each = (errors[:, :, None] * shown[:, None, :]).flatten(1)
        total = torch.zeros(count, each.shape[1]).index_add_(0, groups, each)
    return total / groups.bincount(minlength=count)[:, None]


def train(trial: Trial, problem: utility.Problem, wrong: float, adaptive: bool) -> float:
    """Accuracy on the people held out."""
    prepared, start = held_out.ready(trial, problem.base)
    right, noise = trial.tree["policy"]["clip_norm"], prepared.plan.rows[0][0].noise.multiplier  # type: ignore[union-attr]
    norm = right * wrong
    silos = []
    for silo in prepared.silos.values():
        groups = torch.from_numpy(silo.data.subjects).unique(return_inverse=True)[1]
        silos.append((seen(silo.inputs), silo.targets, groups))
    subjects = [int(groups.max()) + 1 for _, _, groups in silos]
    weights = _begin(start.state.vector, silos[0][0])
    z = noise / math.sqrt(1 - 1 / 16) if adaptive else noise
    draws, rounds = torch.Generator().manual_seed(trial.seed), trial.tree["rounds"]["count"]
    for round in range(rounds):
        total, below = torch.zeros(weights.numel()), 0.0
        for shown, targets, groups in silos:
            found = gradients(shown, targets, groups, weights)
            lengths = found.norm(dim=1)
            total += (found * (norm / lengths.clamp_min(norm))[:, None]).sum(0)
            total += z * norm * torch.randn(total.shape, generator=draws)
            below += float((lengths <= norm).sum()) + 2 * noise * float(torch.randn((), generator=draws))
        rate = trial.tree["rounds"]["learning_rate"] * (right / norm) * (1 - round / rounds)
        weights -= rate * (total / sum(subjects)).view_as(weights)
        if adaptive:
            norm *= math.exp(-SPEED * (below / sum(subjects) - QUANTILE))
    data = prepared.scored["validation"]
    answers = outputs(seen(torch.from_numpy(data.inputs)), weights).argmax(1)
    return float((answers == torch.from_numpy(data.targets)).float().mean())


def _begin(vector: Tensor, shown: Tensor) -> Tensor:
    """The parameters as [class, feature], the constant last."""
    if shown.ndim == 1:  # a square table
        return vector.view(math.isqrt(vector.numel()), -1).T.clone()
    classes = vector.numel() // shown.shape[1]
    return torch.cat([vector[:-classes].view(classes, -1), vector[-classes:, None]], 1)


def tree(name: str, epsilon: float) -> Tree:
    rounds, rate, norm = SETTINGS[name]
    policy = {"name": "subject_dp", "rate": 1.0, "clip_norm": norm}
    return trained(policy, {"count": rounds[EPSILONS.index(epsilon)], "learning_rate": rate}, server=LINEAR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backbone", type=Path, default=record.ROOT / "recipes" / "digits.safetensors")
    parser.add_argument("--only", nargs="+", default=list(SETTINGS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = utility.problems(given.backbone)
    for name in given.only:
        for seed, epsilon in itertools.product(SEEDS, EPSILONS):
            trial = Trial(name, epsilon, seed, tree(name, epsilon))
            for wrong, adaptive in itertools.product(WRONG, (False, True)):
                row = {"data": name, "epsilon": epsilon, "seed": seed, "wrong": wrong, "adaptive": adaptive}
                if any(row.items() <= done.items() for done in utility.read(RESULTS)):
                    continue
                held_out.keep({**row, "accuracy": train(trial, known[name], wrong, adaptive)}, RESULTS)
        for epsilon, wrong in itertools.product(EPSILONS, WRONG):
            own = [r for r in utility.read(RESULTS) if (r["data"], r["epsilon"], r["wrong"]) == (name, epsilon, wrong)]
            means = [
                100 * statistics.mean(r["accuracy"] for r in own if r["adaptive"] is kind) for kind in (False, True)
            ]
            print(f"{name}, ε = {epsilon:g}, {wrong:g} C: fixed {means[0]:.1f}, adaptive {means[1]:.1f}", flush=True)


if __name__ == "__main__":
    main()
