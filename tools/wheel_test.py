"""Build the wheel, install it into a fresh environment far from the checkout, and use it as a newcomer would.

Usage: python tools/wheel_test.py [PYTHON]   (another interpreter to try the wheel with; this one by default)

torch comes first and by its public version, so that pip takes a CPU build wherever one is offered.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
NEEDED = (
    "wholegrain/py.typed",
    "wholegrain_reproduction/py.typed",
    "wholegrain_reproduction/recipes/",
)
SPEC = """\
[data.table]
path = "visits.csv"
subject = "patient"
silo = "clinic"
target = { column = "ill", classes = ["no", "yes"] }
missing_values = ["?"]
[data.table.features]
age = { low = 0, high = 110, missing = 50 }
since = { low = 2015-01-01, high = 2024-12-31 }
[silos]
items_per_subject = 4
[privacy]
epsilon = 4.0
delta = 1e-4
[policy]
rate = 1.0
[rounds]
count = 2
"""


def main(python: str) -> None:
    """Try the wheel with this interpreter; the first step that fails ends it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = _build(folder / "dist")
        _require_files(wheel)
        bin = _install(wheel, folder / "env", python)
        _use(bin, folder / "work")
    print(f"The wheel works with {subprocess.check_output([python, '--version'], text=True).strip()}.")


def _build(out: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", out, ROOT], check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def _require_files(wheel: Path) -> None:
    """Code, types, the report's templates and the recipes are all in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so")]
    needed = [str(path.relative_to(ROOT / "src")) for path in sources]
    missing = [name for name in (*needed, *NEEDED) if not any(each.startswith(name) for each in names)]
    if missing:
        sys.exit(f"The wheel lacks {', '.join(missing)}.")


def _install(wheel: Path, environment: Path, python: str) -> Path:
    """A fresh environment with the wheel and what it needs; returns its folder of commands."""
    subprocess.run([python, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, wheel], check=True)
    return environment / "bin"


def _use(bin: Path, work: Path) -> None:
    """From a table to a record, with the commands of a newcomer."""
    work.mkdir()
    rows = [f"p{i % 40},{'ns'[i % 2]},{'?' if i % 9 == 0 else 20 + i % 60},2020-01-{1 + i % 28:02}" for i in range(160)]
    lines = [f"{row},{'yes' if i % 60 > 30 else 'no'}" for i, row in enumerate(rows)]
    (work / "visits.csv").write_text("patient,clinic,age,since,ill\n" + "\n".join(lines) + "\n")
    (work / "visits.toml").write_text(SPEC)
    _call(work, bin / "python", "-c", "import wholegrain; print(wholegrain.__version__)")
    _call(work, bin / "python", "-m", "wholegrain", "--version")
    _call(work, bin / "wholegrain", "-h")
    _call(work, bin / "wholegrain", "data", "init", "visits.csv", "--out", "begun.toml")
    _call(work, bin / "wholegrain", "plan", "visits.toml")
    _call(work, bin / "wholegrain", "run", "visits.toml", "--out", "run", "--quiet")
    _call(work, bin / "wholegrain", "report", "run", "--out", "report.html")
    if "predict" in _call(work, bin / "wholegrain", "-h"):
        _call(work, bin / "wholegrain", "predict", "run", "visits.csv", "--out", "predicted.csv")
    for needs in ("demo", "silo --policy-file none.toml"):
        done = _run(work, bin / "wholegrain", *needs.split())
        if done.returncode != 2 or "pip install" not in done.stderr or done.stderr.count("\n") != 1:
            sys.exit(f"`wholegrain {needs}` does not name its extra in one sentence: {done.stdout}{done.stderr}")


def _call(work: Path, *command: str | Path) -> str:
    done = _run(work, *command)
    print("$", *[Path(command[0]).name, *command[1:]], f"→ {done.returncode}", flush=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def _run(work: Path, *command: str | Path) -> "subprocess.CompletedProcess[str]":
    own = {"WHOLEGRAIN_STATE": str(work / "state"), "WHOLEGRAIN_CACHE": str(work / "cache"), "OMP_NUM_THREADS": "1"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=work, env=clean | own, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.executable)
