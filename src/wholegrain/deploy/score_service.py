"""Private scores of a silo that does not trust its server: paid for in its own ledger, and noisy before they leave."""

from torch import Tensor

from wholegrain.deploy.model_agreement import find_model
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines.wire import SiloTask
from wholegrain.errors import BudgetError, RefusalError, SpecError
from wholegrain.federation.rounds import digest
from wholegrain.policies.score_settings import ScoreForm, ScoreSettings
from wholegrain.silo.score_release import ScoreMaker, make_form


def release_score(host: SiloService, task: SiloTask, vector: Tensor) -> Tensor:
    """The noisy score of these parameters on the people whom the charter holds out, or a refusal.

    Guarantee: it is paid for in the ledger, within the charter's ε and δ, before any item is read. Whoever is held out
    is in no update of this silo, so that of each run the larger of training and scores is what a person pays.
    """
    if task.settings.trust is not None or "local" not in host.charter.allow.trust:
        raise RefusalError("allow.trust", "what only this silo's noise protects is not released on these terms")
    form = require_score(host, task)
    agreed = find_model(host.agreed, task)
    policy = host.policy_for(task)
    host.require_parameters(vector, agreed)
    noise = host.fresh_noise()
    guard = host.open_guard(task, host.terms_for(task, policy), noise)
    try:
        reservation = guard.reserve_scores(task.round, [host.charter.silo], digest(vector))
    except BudgetError as error:
        raise RefusalError("limit.epsilon", str(error)) from error
    facts = {"run": guard.run, "round": task.round, "scores": 1}
    host.note("granted", {**facts, "epsilon_spent": reservation.account})
    maker = ScoreMaker(model=agreed.learner.trained, loss=agreed.loss, task=agreed.predicts, noise=noise)
    found = maker.score(host.charter.silo, agreed.scored, form, vector, task.round)
    guard.confirm(reservation, [host.charter.silo])
    host.note("released", facts)
    return found.float()


def require_score(host: SiloService, task: SiloTask) -> ScoreForm:
    """The private score that the task asks for, if the charter agrees to such a one."""
    charter, form, trust = host.charter, task.scores, task.settings.trust
    if charter.allow.scores != "private" or form is None:
        raise RefusalError("allow.scores", "no private score may leave this silo")
    if charter.held_out == 0:
        raise RefusalError("allow.scores", "this silo holds nobody out to be scored")
    seen = form.noise_multiplier if trust is None else trust.sum_noise(form.noise_multiplier)
    if seen < charter.limit.smallest_noise:
        raise RefusalError("limit.smallest_noise", f"a noise multiplier of {seen:g} is too small")
    if form.by_span != (trust is not None and task.settings.by_span):
        raise RefusalError("message", "scores count people by span exactly where a secure sum of training does")
    asked = ScoreSettings(measures=form.measures, bins=form.bins, loss_bound=form.loss_bound)
    try:
        return make_form(asked, host.dataset.task, form.noise_multiplier, by_span=form.by_span)
    except SpecError as error:
        raise RefusalError("message", str(error)) from error
