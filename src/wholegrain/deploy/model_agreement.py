"""The models that a silo agrees to train: its own files and its own code alone; of the server's nothing but names.

A task names a model, its options, its loss and, where it starts from public parameters, the backbone's digest and what
is trained from there. All of that must be what the charter says, or the task is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.errors_as_values import ErrorsAsValues
from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.reference import Loss
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Task
from wholegrain.deploy.charter import Charter
from wholegrain.engines.wire import NO_START, USUAL_LOSS, ModelTask, SiloTask, start_task
from wholegrain.errors import RefusalError, SpecError, WholegrainError
from wholegrain.runs.planning import require_steady
from wholegrain.runs.spec_sections import ModelSpec
from wholegrain.runs.trained_model import TrainedModel, build_trained_model
from wholegrain.silo.score_release import HeldOut
from wholegrain.silo.training import Silo


@dataclass(frozen=True, eq=False, kw_only=True)
class AgreedModel:
    """A model of the charter, ready to train, and the silo as the part that is trained sees it."""

    model: ModelSpec
    predicts: Task
    learner: TrainedModel
    loss: Loss
    gradients: ErrorsAsValues
    silo: Silo
    """With its view, if part of the model is frozen; what that makes of the items is computed once."""
    held_out: HeldOut

    @cached_property
    def task(self) -> ModelTask:
        """What a task must say of the model, to the letter."""
        return ModelTask(
            model=self.model.name,
            options=self.model.options,
            start=start_task(self.learner.public),
            loss=self.model.loss or self.predicts.loss,
        )

    @cached_property
    def scored(self) -> SubjectData | None:
        """The items that are held out, as the trained part sees them."""
        data = self.held_out.data
        return None if data is None else self.learner.apply_frozen(data)

    def __str__(self) -> str:
        start = self.task.start
        return f"{self.model.name} from {start}" if start else self.model.name


def agree(charter: Charter, dataset: Dataset, silo: Silo, held_out: HeldOut) -> tuple[AgreedModel, ...]:
    """Build every model of the charter, for its device; what cannot be built, or started from its file, is refused."""
    memory = int(charter.compute.memory_gib * 2**30)
    if charter.limit.noise == "secure":
        require_steady(charter.compute.device)
    compute = Compute.of(charter.compute.device, charter.compute.precision, charter.compute.compiled)
    return tuple(
        AgreedModel(
            model=model,
            predicts=dataset.task,
            learner=learner,
            loss=loss,
            gradients=clipped_sums(learner.trained, loss, compute, memory),
            silo=learner.silos({charter.silo: silo})[charter.silo],
            held_out=held_out,
        )
        for model, (learner, loss) in zip(charter.allow.models, _learners(charter, dataset), strict=True)
    )


def _learners(charter: Charter, dataset: Dataset) -> Iterator[tuple[TrainedModel, Loss]]:
    for number, model in enumerate(charter.allow.models):
        try:
            learner = build_trained_model(model, dataset.features, dataset.task, charter.seed)
            yield learner, find_loss(model.loss, dataset.task)
        except WholegrainError as error:
            raise SpecError(f"In the charter, allow.models.{number}: {error}") from error


def find_model(agreed: Sequence[AgreedModel], task: SiloTask) -> AgreedModel:
    """The model that the task asks for, from the start that it asks for; nothing is built for it."""
    asked = (task.model, task.options, task.loss)
    named = [each for each in agreed if (each.task.model, each.task.options, each.task.loss) == asked]
    if not named:
        loss = "" if task.loss == USUAL_LOSS else f" and the loss '{task.loss}'"
        raise RefusalError("allow.models", f"the model '{task.model}' with these options{loss} is not agreed to")
    for each in named:
        if each.task.start == task.start:
            return each
    offers = " or ".join(str(each.task.start or NO_START) for each in named)
    raise RefusalError(
        "allow.models", f"the model '{task.model}' is agreed to from {offers}, not from {task.start or NO_START}"
    )
