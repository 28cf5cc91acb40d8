# %% [markdown]
# # Reproduce the paper
#
# wholegrain follows *Subject Granular Differential Privacy in Federated Learning* (Marathe, Kanani, Peterson, Steele).
# `wholegrain reproduce` repeats its evaluation. What came out is in [Reproduction](../reproduction.md); here is how to
# do it yourself. Needs `wholegrain[data]`.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())


def wholegrain(line: str) -> str:
    done = subprocess.run([sys.executable, "-m", "wholegrain", *line.split()], capture_output=True, text=True)
    return done.stdout + done.stderr


# %% [markdown]
# First the question behind the paper. DP-SGD with ε ≈ 4 for each record: what does a person with twenty records get?

# %%
dp_sgd = "account --policy local_item_dp --rate 0.0201773399 --noise 1.8144 --steps 5000"
print(wholegrain(f"{dp_sgd} --items-per-subject 20"))

# %% [markdown]
# LocalGroupDP as the paper prints it chooses its noise by the largest group of one person's records in a batch, here 3.
# The noise that it computes for ε = 4 gives somebody with 20 records in the silo much less
# ([Soundness](../soundness.md) has the reasons, and more such cases):

# %%
printed = "calibrate --policy local_group_dp --cap 3 --rate 0.0201773399 --steps 5000 --epsilon 4 --as-printed"
print(wholegrain(printed))
proved = "account --policy local_item_dp --rate 0.0201773399 --noise 5.327 --steps 5000"
print(wholegrain(f"{proved} --items-per-subject 20"))

# %% [markdown]
# A figure at the smallest scale shows that everything runs. Its figures mean nothing: it trains for two rounds, on
# typefaces in place of handwriting and on synthetic text in place of Shakespeare.

# %%
wholegrain(f"reproduce fig2 --scale smoke --data glyphs --data babble --processes 1 --out {folder}")
page = next(folder.glob("*/reproduction.md")).read_text(encoding="utf-8")
print(page[page.index("- In the place") : page.index("What is not as")])

# %% [markdown]
# For figures that mean something take `--scale small` (about half an hour on two cores), `medium` (two hours, with more
# of the paper's model for plays) or `full`, and LEAF's own data with `--data femnist=DIR --data shakespeare=DIR`.
