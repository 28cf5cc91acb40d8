"""A model of your own: any torch module whose layers keep items apart."""

import torch
from torch import nn

import wholegrain as wg

torch.manual_seed(0)  # the model is your own, and so are its first parameters
model = nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 2))
run = wg.train(
    wg.clinics(patients=3000, clinics=8, span=3),
    model=model,
    silos={"span": 3},
    policy={"name": "higradavg_dp", "rate": 0.5},
    privacy={"epsilon": 4.0},
    rounds={"count": 30, "learning_rate": 2.0, "averaging": "subjects"},
)
print(run.guarantee)
print(f"accuracy on patients never seen: {run.accuracy:.1%}")
