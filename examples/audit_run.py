# %% [markdown]
# # Audit a training
#
# A proof bounds ε from above. An audit attacks the code that runs, and bounds ε from below. The two must not cross.
# On the command line this is `wholegrain audit examples/clinics.toml`; here it is with few trials, so that it ends
# soon.

# %%
from pathlib import Path

from wholegrain.audit.auditing import AuditSettings, audit
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import load

spec = load(Path("examples/clinics.toml"), ("rounds.count=5", "data.options.patients=600"))
data = load_dataset(spec)
prepared = prepare(spec, dataset=data)

# %% [markdown]
# Canaries are made-up people. A secret coin decides of each whether it is trained on; the attack must guess the coins
# from what the training releases. More canaries and runs give tighter bounds and take longer.

# %%
settings = AuditSettings(canaries=500, runs=4, subjects=20_000)
found = audit(prepared, data, settings)
print(f"{found.verdict}: at least {found.epsilon:.2f} leaks, and {found.proved.epsilon:.2f} was proved")

# %% [markdown]
# Which attack found how much, with 95 % confidence for all of them together:

# %%
for finding in sorted(found.findings, key=lambda each: -each.epsilon)[:5]:
    print(f"{finding.attack} ({finding.method}): ε ≥ {finding.epsilon:.2f}")

# %% [markdown]
# Checks of what the proof rests on: the noise has its strength, and one person moves a sum by no more than was
# priced.

# %%
for check in found.checks:
    print(f"{check.name}: {check.seen}, {'passed' if check.passed else 'FAILED'}")
