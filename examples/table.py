# %% [markdown]
# # From a table to predictions
#
# A table of visits, a model that protects each patient in all clinics together, and predictions for new patients.

# %%
import polars as pl

import wholegrain as wg

visits = pl.read_csv("examples/own_table/visits.csv")  # pandas and pyarrow do as well

# %% [markdown]
# Declare which column is what. Bounds and categories come from knowledge, never from looking at the rows.

# %%
data = wg.from_frame(
    visits,
    subject="patient",
    silo="clinic",
    target=wg.Target("readmitted", ["no", "yes"]),
    features={
        "age": wg.Number(0, 110),
        "pressure": wg.Number(80, 200, missing=120),
        "sex": wg.Category(["f", "m"]),
    },
)
data

# %% [markdown]
# The budget is for one patient, in all clinics and rounds together. `plan` shows what it buys, before any training.

# %%
settings = {"policy": wg.subject_dp(rate=1.0), "epsilon": 4, "rounds": 15, "averaging": "subjects"}
plan = wg.plan(data, learning_rate=1.0, **settings)
print(plan)
for guarantee in plan.guarantees:
    print(guarantee)

# %%
run = wg.train(data, learning_rate=1.0, **settings)
print(run.guarantee)
print(f"accuracy on patients never seen: {run.accuracy:.1%}")

# %% [markdown]
# Predictions are post-processing: they cost no privacy of those who were trained on.

# %%
new = pl.DataFrame({"age": [25, 81], "pressure": [118.0, 171.0], "sex": ["f", "m"]})
predictions = run.predict(new)
predictions
