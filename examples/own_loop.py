# %% [markdown]
# # A training loop of your own
#
# `private_steps` fills `.grad`, and any torch optimizer does the rest. Every step is paid for before it is computed.

# %%
import torch
from torch import nn

import wholegrain as wg

torch.manual_seed(0)
clinics = wg.clinics(patients=1500, clinics=3)  # synthetic
north = clinics.silo("clinic-0")  # one silo: a loop of your own runs where its data is
net = nn.Linear(10, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)

# %% [markdown]
# Each step draws people at random, clips what each of them contributes, adds noise and puts the result where `backward`
# would have put a gradient. `steps` is fixed beforehand, because the noise depends on it.

# %%
private = wg.private_steps(net, north, policy=wg.subject_dp(rate=0.5), epsilon=4, delta=1e-5, steps=60)
spent = []
for _ in private:
    optimizer.step()
    schedule.step()
    spent.append(private.spent)
print(f"ε after 1, 10 and 60 steps: {spent[0]:.2f}, {spent[9]:.2f}, {spent[59]:.2f}")

# %% [markdown]
# What is guaranteed for everybody in this silo's data. The noise came from a seed, so this is a simulation.

# %%
print(private.guarantee)
