"""A finished run in Python, from `train` or from a folder: its model, guarantee, predictions and report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import wholegrain
from wholegrain import _check
from wholegrain._files import write_whole
from wholegrain._html import html_table
from wholegrain.api.predictions import predict
from wholegrain.clipping.parameters import flatten
from wholegrain.data.schema import TableLayout
from wholegrain.data.task_facts import read_task
from wholegrain.data.tasks import Task
from wholegrain.errors import ModelError, RunError
from wholegrain.federation.round_record import RoundRecord, Score
from wholegrain.models.trainable_part import with_adapters
from wholegrain.privacy.definitions import Guarantee, Unit
from wholegrain.report.page import page
from wholegrain.report.run_reader import LedgerCheck, RunRecord, read_run
from wholegrain.runs.model_file import MODEL, read_layout, read_model
from wholegrain.runs.plan_record import PlanRecord, proper
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.run_identity import RunIdentity
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.spec import GIVEN, RunSpec
from wholegrain.runs.trained_model import build_trained_model


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Run:
    """A finished run: what was planned, what was spent, what each round gave, and the trained model.

    >>> import wholegrain as wg
    >>> visits = wg.clinics(patients=200, clinics=3)
    >>> run = wg.train(visits, policy=wg.subject_dp(rate=0.5), epsilon=4, rounds=2)
    >>> run
    <run of subject_dp, 2 rounds; subject: ε = 3.999, δ = 1e-05, PROVED by pld (simulation: seeded noise, sizes read \
off the data)>
    >>> run.predict(wg.clinics(patients=1)).columns
    ['prediction', 'probability: 0', 'probability: 1']
    """

    spec: RunSpec
    plan: PlanRecord
    summary: RunSummary
    rounds: tuple[RoundRecord, ...]
    task: Task | None = None
    """What is predicted; None where only the program that trained the model knows."""
    layout: TableLayout | None = None
    """How the columns of a table become inputs; None where the run was trained on no table."""
    folder: Path | None = None
    trained: nn.Module | None = None

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        if self.trained is None:
            raise RunError(
                f"The model of the run in '{self.folder}' was given in Python, and its folder holds the parameters"
                " alone; load it with wg.load(folder, net)."
            )
        return self.trained

    @property
    def guarantee(self) -> Guarantee:
        """What is proved for a person, of what was released; `plan.promise` is what was planned."""
        return self.spent(Unit.SUBJECT)

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the plan's guarantees have come to, by the ledger."""
        return self.summary.spent

    def spent(self, unit: Unit) -> Guarantee:
        """What is proved for a unit, of what was released."""
        return proper(self.summary.spent, unit)

    @property
    def scores(self) -> Mapping[str, Score]:
        """Scores after the last round, by part. Not private."""
        return self.summary.scores

    @property
    def accuracy(self) -> float:
        """Accuracy on the test part (or on whatever part was scored last)."""
        parts = self.scores
        return (parts.get("test") or list(parts.values())[-1]).accuracy if parts else float("nan")

    @property
    def constant(self) -> Mapping[str, Score]:
        """What the best constant answer would score on each part. Not private."""
        return self.summary.constant

    @property
    def warnings(self) -> tuple[str, ...]:
        """Bad news about the model: that it is no better than a constant answer, or has diverged."""
        return self.summary.warnings

    @property
    def vector(self) -> Tensor:
        """The trained parameters as one vector."""
        return flatten(self.model)

    @property
    def noise(self) -> str:
        """Where the noise came from."""
        return self.summary.noise

    @property
    def seconds(self) -> float:
        """How long the rounds took; 0 in a release, which does not tell."""
        return self.summary.seconds

    def predict(self, rows: Any) -> Any:
        """Predictions for new rows: a table for a table, of the same library; or for inputs, as a tensor [item, …].

        A table needs the columns of the features; subject, silo and target are not looked at. Post-processing: it
        costs no privacy of those who were trained on.
        """
        if self.task is None:
            raise RunError("The folder does not say what the model predicts; use run.model on inputs.")
        return predict(self.model, self.task, self.layout, rows)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the report, one HTML page, and say where: in the run's folder, or as report.html in this one."""
        path = Path(out) if out is not None else (self.folder or Path()) / "report.html"
        try:
            write_whole(path, page([self._record()]).encode())
        except OSError as error:
            raise RunError(f"'{path}' cannot be written: {error.strerror}.") from error
        return path

    def __repr__(self) -> str:
        news = "".join(f"; {sentence.rstrip('.')}" for sentence in self.warnings)
        return f"<run of {self.plan.policy}, {len(self.rounds)} rounds; {self.guarantee}{news}>"

    def _repr_html_(self) -> str:
        rows = [
            (part, score.headline[0], f"{score.headline[1]:.4f}", f"{self.constant[part].headline[1]:.4f}")
            for part, score in self.scores.items()
        ]
        title = f"Run of {self.plan.policy}, {len(self.rounds)} rounds"
        note = " ".join((*self.warnings, "Scores are not private."))
        scores = html_table(title, ("items of", "score", "model", "constant answer"), rows, note)
        return scores + self.guarantee._repr_html_()

    def _record(self) -> RunRecord:
        """What the report is about; a run without a folder is told from memory."""
        if self.folder is not None:
            return read_run(self.folder, self.folder.resolve().name)
        return RunRecord(
            name=self.plan.policy,
            path=Path(),
            spec=self.spec,
            plan=self.plan,
            identity=RunIdentity(run="–", spec=self.spec.digest, wholegrain=wholegrain.__version__),
            rounds=self.rounds,
            summary=self.summary,
            counts=None,
            public=None,
            ledger=LedgerCheck(True, "kept in memory, and gone with the program that trained"),
            spent=self.summary.spent,
            account=None,
        )


def finished_run(prepared: PreparedRun, result: RunResult, layout: TableLayout | None, folder: Path | None) -> Run:
    """The run that has just come to its end."""
    return Run(
        spec=result.spec,
        plan=PlanRecord.of(result.plan),
        summary=RunSummary.of(result),
        rounds=result.rounds,
        task=prepared.task,
        layout=layout,
        folder=folder,
        trained=result.model,
    )


def load(folder: str | Path, net: nn.Module | None = None) -> Run:
    """A finished run from its folder, whether Python or the command line trained it.

    `net` is needed where the model was given in Python: its trained parameters are loaded into it.

    >>> import tempfile, wholegrain as wg
    >>> with tempfile.TemporaryDirectory() as place:
    ...     data = wg.clinics(patients=200, clinics=3)
    ...     run = wg.train(data, policy=wg.subject_dp(rate=0.5), epsilon=4, rounds=2, out=f"{place}/a")
    ...     print(wg.load(f"{place}/a").guarantee)
    subject: ε = 3.999, δ = 1e-05, PROVED by pld (simulation: seeded noise, sizes read off the data)
    """
    kept = RunFolder.open(Path(folder))
    summary, spec = kept.summary, kept.kept_spec
    if summary is None:
        raise RunError(f"The run in '{folder}' is not at its end; go on with `wholegrain resume {folder}`.")
    path = kept.path / MODEL
    tensors, facts = read_model(path)
    task = read_task(facts["task"])
    if net is None and spec.model.name != GIVEN:
        net = build_trained_model(spec.model, facts["model"]["features"], task, spec.seed).model
    return Run(
        spec=spec,
        plan=kept.plan,
        summary=summary,
        rounds=kept.rounds,
        task=task,
        layout=None if facts["table"] is None else read_layout(facts["table"]),
        folder=kept.path,
        trained=None if net is None else _load_into(net, spec, tensors, path),
    )


def _load_into(net: nn.Module, spec: RunSpec, tensors: Mapping[str, Tensor], path: Path) -> nn.Module:
    """The net with the trained parameters."""
    net = with_adapters(net, spec.model.used_rank, spec.model.used_prefix)
    try:
        missing, strange = net.load_state_dict(tensors, strict=False)
    except Exception as error:  # torch and safetensors say what does not fit
        raise ModelError(f"The parameters in '{path}' do not fit the model: {_check.reason(error)}.") from error
    absent = [name for name, parameter in net.named_parameters() if parameter.requires_grad and name in missing]
    if absent or strange:
        raise ModelError(f"The parameters in '{path}' are of another model: {[*absent, *strange][0]} is not in both.")
    return net
