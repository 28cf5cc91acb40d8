# %% [markdown]
# # A training loop of your own
#
# `private_steps` fills `.grad`, and any torch optimizer does the rest. Every step is paid for before it is computed.

# %%
import torch
from torch import nn

import wholegrain as wg

torch.manual_seed(0)
north = wg.clinics(patients=1500, clinics=3).silo("clinic-0")
net = nn.Linear(10, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)

# %%
private = wg.private_steps(net, north, policy=wg.subject_dp(rate=0.5), epsilon=4, delta=1e-5, steps=60)
spent = []
for _ in private:
    optimizer.step()
    schedule.step()
    spent.append(private.spent)

# %%
private.guarantee
