# %% [markdown]
# # Reading a report
#
# A small run, its report, and the same answers in Python. The clinics are synthetic: nobody real is in them.

# %%
import tempfile
from pathlib import Path

import wholegrain as wg
from wholegrain.privacy.tradeoff_curve import belief_after

folder = Path(tempfile.mkdtemp())
visits = wg.clinics(patients=600, clinics=4, span=2)
run = wg.train(
    visits,
    policy=wg.subject_dp(rate=1.0),
    epsilon=4,
    span=2,
    rounds={"count": 10, "learning_rate": 3.0, "averaging": "subjects"},
    about={"author": "R. Example", "purpose": "To tell early who is likely to be readmitted"},
    out=folder / "run",
)
page = run.report(folder / "report.html")  # open it in a browser

# %% [markdown]
# **Who is protected, and by how much?** The guarantee is for one subject: all records of one patient, in all clinics.
# It is marked as a simulation, because its noise comes from a seed. The report's badge says the same: SIMULATION.

# %%
print(run.guarantee)

# %% [markdown]
# **What does that ε mean?** Somebody is 1 % (or 50 %) sure that a patient took part. Whatever the model and all
# updates look like, they can be at most this sure afterwards (by outcomes that are not rarer than 1 %).

# %%
after = {before: belief_after(before, run.guarantee.epsilon, run.guarantee.delta) for before in (0.01, 0.5)}
for before, most in after.items():
    print(f"{before:.0%} before, at most {most:.1%} after")

# %% [markdown]
# **How good is the model?** Compare with the best constant answer, not with zero. These scores are computed without
# noise, so they are not private.

# %%
for part, score in run.scores.items():
    metric, value = score.headline
    print(f"{part}: {metric} {value:.1%}, a constant answer {run.constant[part].headline[1]:.1%}")

# %% [markdown]
# **What was spent?** The ledger says it, whatever the plan was. ε of an item may be larger than ε of a subject: the
# report explains why.

# %%
for spent in run.summary.spent:
    print(f"{spent.unit}: ε = {spent.epsilon:.4g}, {spent.standing}")

# %% [markdown]
# **What goes out with the model?** Its card, `README.md`, beside `model.safetensors`.

# %%
card = (folder / "run" / "README.md").read_text(encoding="utf-8")
print(card)
