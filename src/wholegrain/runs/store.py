"""A run's folder: the exact spec and plan, one line per round, the model, and a summary.

Files are written whole (to a neighbour, then renamed), except the rounds, which grow by one line each.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from wholegrain.errors import RunError
from wholegrain.gradients.parameters import Layout
from wholegrain.runs.progress import RoundDone
from wholegrain.runs.runner import Prepared, Run
from wholegrain.runs.summary import plan_facts, round_facts, run_facts


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @staticmethod
    def create(path: Path, prepared: Prepared) -> "RunFolder":
        """A new folder with spec and plan; one that already holds something is refused."""
        require_free(path)
        folder = RunFolder(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder._write("spec.json", prepared.spec.model_dump(mode="json"))
            folder._write("plan.json", plan_facts(prepared.plan))
        except OSError as error:
            raise RunError(f"The folder '{path}' cannot be written: {error.strerror}.") from error
        return folder

    def add_round(self, done: RoundDone) -> None:
        """Append one round's line."""
        try:
            with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(round_facts(done), ensure_ascii=False) + "\n")
        except OSError as error:
            raise RunError(f"The round cannot be recorded in '{self.path}': {error}.") from error

    def finish(self, run: Run) -> None:
        """Write the model and the summary."""
        parameters = {n: v.contiguous() for n, v in Layout.of(run.model).views(run.vector).items()}
        target, partial = self.path / "model.safetensors", self.path / "model.safetensors.partial"
        try:
            save_file(parameters, partial)
            os.replace(partial, target)
            self._write("summary.json", run_facts(run))
        except OSError as error:
            raise RunError(f"The run cannot be saved in '{self.path}': {error}.") from error

    def _write(self, name: str, content: dict[str, Any]) -> None:
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, self.path / name)


def require_free(path: Path) -> None:
    """Refuse a path that already holds something, so that no run is overwritten."""
    try:
        taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise RunError(f"The folder '{path}' cannot be used: {error.strerror}.") from error
    if taken:
        raise RunError(f"'{path}' already exists and is not empty; choose another --out.")
