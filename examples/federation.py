# %% [markdown]
# # A federation on one laptop
#
# Three clinics and a server, each a process of its own, train one model over TLS. No clinic sees another's table, and
# the server sees none. On the command line these are the commands of
# [Operate a federation](../operate-a-federation.md); here Python types them. Needs `wholegrain[flower]`.

# %%
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

import wholegrain as wg

folder = Path(tempfile.mkdtemp())
own = {**os.environ, "WHOLEGRAIN_STATE": str(folder / "state")}  # accounts of this example alone


def wholegrain(line: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "wholegrain", *line.split()], cwd=folder, env=own, capture_output=True, text=True
    )
    return done.stdout + done.stderr


print(wholegrain("federation init fed --silo north --silo south --silo west"))

# %% [markdown]
# Each clinic gets its own part of a table, which stays with it.

# %%
visits = pl.read_csv("examples/own_table/visits.csv")
for (clinic,), rows in visits.partition_by("clinic", as_dict=True).items():
    rows.drop("clinic").write_csv(folder / "fed" / clinic / "visits.csv")
visits.group_by("clinic").agg(pl.len().alias("visits"), pl.col("patient").n_unique().alias("patients")).sort("clinic")

# %% [markdown]
# Each operator fills in a *charter*: what the clinic agrees to, whatever the server asks. Sizes are declared in round
# numbers, because exact ones would tell something about the people.

# %%
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
for clinic in ("north", "south", "west"):
    charter = folder / "fed" / clinic / "silo.toml"
    text = charter.read_text().replace("8443", str(port))
    text = text.replace('items_per_subject = "FILL IN"', "items_per_subject = 6")
    text = text.replace('path = "FILL IN"', 'path = "visits.csv"').replace('subject = "FILL IN"', 'subject = "patient"')
    text = text.replace('column = "FILL IN"', 'column = "readmitted"').replace('["FILL IN"]', '["no", "yes"]')
    text = text.replace('age = { low = "FILL IN", high = "FILL IN" }', "age = { low = 0, high = 110 }")
    text = text.replace('items = "FILL IN"\nsubjects = "FILL IN"', "items = 350\nsubjects = 100")
    charter.write_text(text.replace('data = "FILL IN"', f'data = "visits of {clinic}"'))
print(charter.read_text().split("[limit]")[0])

# %% [markdown]
# The server's operator fills in the shape of an input, the number of classes, and what the clinics declare.

# %%
server = folder / "fed" / "server"
(server / "server.toml").write_text((server / "server.toml").read_text().replace("8443", str(port)))
spec = (server / "spec.toml").read_text().replace('["FILL IN"]', "[1]").replace('"FILL IN"', "2")
(server / "spec.toml").write_text(spec)
roster = (server / "roster.toml").read_text()
for key, value in ((" items", 350), (" subjects", 100), (" items_per_subject", 6)):
    roster = roster.replace(f'{key} = "FILL IN"', f"{key} = {value}")
(server / "roster.toml").write_text(roster)
print(wholegrain("silo --charter fed/north/silo.toml --check").split(" smallest_noise")[0])

# %% [markdown]
# Three silos and a server. The server ends when the training does; silos would wait for the next one.

# %%
silos = [
    subprocess.Popen(
        [sys.executable, "-m", "wholegrain", "silo", "--charter", f"fed/{clinic}/silo.toml"],
        cwd=folder,
        env=own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for clinic in ("north", "south", "west")
]
wholegrain("server fed/server")
for silo in silos:
    silo.terminate()
    silo.wait()
run = wg.load(folder / "fed" / "server" / "run")
print(run.guarantee)

# %% [markdown]
# This is no simulation: the noise was drawn in each silo and cannot be repeated. What each clinic has spent is in its
# own ledger, and no message can change it. `wholegrain report` makes the page that somebody signs.

# %%
print(wholegrain("report fed/server/run --out report.html"))
