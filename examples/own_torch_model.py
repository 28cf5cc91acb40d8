# %% [markdown]
# # A torch model and data of your own
#
# Any module whose layers keep the items of a batch apart; any torch data set, with whom each item is about.

# %%
import torch
from torch import nn
from torch.utils.data import TensorDataset

import wholegrain as wg

torch.manual_seed(0)
people = torch.arange(400).repeat_interleave(3)
inputs = torch.randn(400, 8)[people] + 0.5 * torch.randn(1200, 8)
targets = (inputs[:, :4].sum(1) > inputs[:, 4:].sum(1)).long()
dataset = TensorDataset(inputs, targets)

# %% [markdown]
# 400 people with three items each, in four sites. `from_torch` takes the data set, and beside it whose item each one is
# and who holds it.

# %%
sites = [f"site-{number % 4}" for number in range(1200)]
data = wg.from_torch(dataset, subjects=people, silos=sites, classes=2)
data

# %% [markdown]
# The model is a plain torch module. A callback is told of every silo's update and every round that is done;
# here they are kept in a list.

# %%
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 2))
seen = []
run = wg.train(
    data,
    net,
    policy=wg.subject_dp(rate=1.0),
    epsilon=8,
    rounds=30,
    learning_rate=2.0,
    loss=nn.CrossEntropyLoss(),
    callbacks=seen.append,
)
print(run.guarantee)
print(f"{len(run.rounds)} rounds, {len(seen)} calls; accuracy on people never seen: {run.accuracy:.1%}")

# %% [markdown]
# Predictions for new inputs, with a probability for each class.

# %%
predictions = run.predict(torch.randn(5, 8))
predictions
