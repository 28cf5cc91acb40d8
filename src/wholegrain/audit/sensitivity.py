"""Without chance: how far one subject's rows move the sum that is to be noised, beside what was priced.

Noise hides a subject because the sum moves by so much and no further. Here the run's own gradients are asked with the
rows and without them; a layer that is not clipped shows at once, however much noise there is.
"""

import torch
from torch import Tensor

from wholegrain.audit.inputs import Portrait, candidates
from wholegrain.gradients.pooling import ClipPer, Pool
from wholegrain.models.inputs import values
from wholegrain.policies.policy import Policy
from wholegrain.runs.runner import Prepared

ROWS = (1, 3)
"""Of how many rows the subject consists."""
BESIDE = 4
"""How many real rows are in the batch with it."""
ROUNDING = 1e-4


def largest_move(prepared: Prepared, seed: int) -> float:
    """The furthest that any candidate's rows move the sum, in units of what is allowed: 1 at most, if all is well."""
    policy, vector = prepared.plan.rows[0][0], prepared.first
    moves = [
        _difference(prepared, vector, portrait, rows) / _allowed(policy, rows)
        for portrait in candidates(prepared, vector, seed)
        for rows in ROWS
    ]
    return max(moves)


def _difference(prepared: Prepared, vector: Tensor, portrait: Portrait, rows: int) -> float:
    policy, _ = prepared.plan.rows[0]
    silo = next(iter(prepared.silos.values()))
    count = min(BESIDE, silo.data.items)
    inputs, targets, groups = values(silo.inputs[:count]), silo.targets[:count], torch.arange(count)
    without = prepared.clipped_sum(vector, inputs, targets, groups, policy.clip).total.clone()
    within = prepared.clipped_sum(
        vector,
        torch.cat([inputs, *[portrait.inputs] * rows]),
        torch.cat([targets, *[portrait.targets] * rows]),
        torch.cat([groups, torch.full((rows,), count)]),
        policy.clip,
    ).total
    return float((within - without).norm())


def _allowed(policy: Policy, rows: int) -> float:
    """By how much rows of one subject may move the sum."""
    clip = policy.clip
    if clip.per is ClipPer.BATCH:
        return 2 * clip.norm
    return clip.norm * (rows if clip.per is ClipPer.ITEM and clip.pool is Pool.SUM else 1)
