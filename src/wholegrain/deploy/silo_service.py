"""A silo that does not trust its server.

Every task is checked against the charter, priced against all that was ever released from the data, and paid for in the
silo's own ledger before a single item is touched. What does not pass is refused with the rule that forbids it, and the
ledger does not move. What leaves the silo is the noisy update, and scores only where the charter allows them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from torch import Tensor

from wholegrain import _check
from wholegrain.clipping.parameters import Layout
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.deploy.charter import Charter
from wholegrain.deploy.model_agreement import AgreedModel, agree, find_model
from wholegrain.deploy.peer_heads import PeerHeads
from wholegrain.deploy.span_link import link_spans
from wholegrain.deploy.sum_session import SumSlot
from wholegrain.engines.wire import SiloTask
from wholegrain.errors import BudgetError, RefusalError, WholegrainError
from wholegrain.federation.rounds import digest
from wholegrain.policies.policy import Policy
from wholegrain.policies.policy_catalog import CATALOG, make_row
from wholegrain.policies.silo_limit import local_terms
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, RunOpened, TermsRecord
from wholegrain.privacy.pricing import Price, Terms
from wholegrain.privacy.statement import account_price, data_price
from wholegrain.runs.datasets import load_dataset, make_coins, spans_of_held_out, split_dataset
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.model_file import layout_facts
from wholegrain.runs.model_fit import require_fit, require_tokens
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.score_release import HeldOut
from wholegrain.silo.training import Silo, Trainer

MOST_NONCES = 10_000


class RecentNonces:
    """The nonces of the last messages: a copy of one of them is not answered again.

    An older copy, or one that comes after a restart, is a task like any other: the ledger prices it anew.
    """

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def add(self, nonce: str) -> bool:
        """Remember a nonce; False where it is known already."""
        if nonce in self._known:
            return False
        self._known[nonce] = None
        if len(self._known) > MOST_NONCES:
            del self._known[next(iter(self._known))]
        return True


@dataclass(frozen=True, eq=False)
class SiloService:
    """One silo: its charter, its data, its ledger, and the machinery of gradients, kept warm between tasks."""

    charter: Charter
    dataset: Dataset
    silo: Silo
    held_out: SubjectData | None
    agreed: Sequence[AgreedModel]
    ledger: Ledger
    accountant: Accountant
    fresh_noise: Callable[[], NoiseSource]
    """A source for every task: secure noise then has an identity for every release, and each of them is paid for."""
    link: str = ""
    """What tells the spans that this silo knows from others; empty where it knows none."""
    division: str = ""
    """What tells who is held out and who is trained on from any other division of the people."""
    key: EllipticCurvePrivateKey | None = None
    """Signs what the silo says."""
    peers: PeerHeads | None = None
    """What other silos said of their ledgers."""
    asked: RecentNonces = field(default_factory=RecentNonces)
    sums: SumSlot = field(default_factory=SumSlot)
    """The session of secure sums that this silo takes part in, if it does."""
    note: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None
    """Told of every grant, release and refusal."""

    @staticmethod
    def open(
        charter: Charter, ledger: Ledger, accountant: Accountant, fresh_noise: Callable[[], NoiseSource]
    ) -> "SiloService":
        """Read the data and hold it to K; whatever is wrong with it is said now, not in a round."""
        for policy in charter.allow.policies:
            _check.one_of("policy", policy, CATALOG)
        spec = charter.as_run()
        dataset = load_dataset(spec)
        dataset.require_targets()
        dataset = replace(dataset, silos=np.full(dataset.data.items, charter.silo))
        dataset, link = link_spans(charter, dataset)
        account = charter.ledger.data or dataset.name
        coins = make_coins(spec, f"{account} in the silo {charter.silo}")
        parts = split_dataset(dataset, spec, coins)
        silo, held_out = parts.silos[charter.silo], parts.held_out.get("test")
        spans = {} if held_out is None else spans_of_held_out({charter.silo: held_out}, dataset, by_span=False)
        agreed = agree(charter, dataset, silo, HeldOut(held_out, spans.get(charter.silo)))
        for each in agreed:
            require_tokens(each.learner.model, dataset)
        division = coins.name("held out", repr(charter.held_out))
        return SiloService(
            charter, dataset, silo, held_out, agreed, ledger, accountant, fresh_noise, link=link, division=division
        )

    def answer(self, task: SiloTask, vector: Tensor) -> Tensor:
        """The update that the task asks for, or a refusal.

        Guarantee: what is returned is paid for in the ledger, within the charter's ε and δ, before any item is read.
        Only the very same numbers are given twice for one price: the same task with the same seeded noise.
        """
        if task.settings.trust is not None or "local" not in self.charter.allow.trust:
            # Else a server could have a silo's own release priced as if the noise of other silos were in it.
            raise RefusalError("allow.trust", "what only this silo's noise protects is not released on these terms")
        agreed = find_model(self.agreed, task)
        policy = self.policy_for(task)
        self.require_parameters(vector, agreed)
        self.require_fit(agreed, policy)
        noise = self.fresh_noise()
        guard = self.open_guard(task, self.terms_for(task, policy), noise)
        try:
            reservation = guard.reserve(task.round, {self.charter.silo: task.steps}, digest(vector))
        except BudgetError as error:
            raise RefusalError("limit.epsilon", str(error)) from error
        facts = {"run": guard.run, "round": task.round, "steps": task.steps}
        self.note("granted", {**facts, "epsilon_spent": reservation.account})
        trainer = Trainer(clipped_sum=agreed.gradients, noise=noise, learning_rate=task.learning_rate)
        update = trainer.train(agreed.silo, policy, vector, task.round, task.steps)
        guard.confirm(reservation, [self.charter.silo])
        self.note("released", facts)
        return update

    def scores(self, task: SiloTask, vector: Tensor) -> Mapping[str, float]:
        """Scores on subjects that are never trained on, as far as the charter lets them out. They are not private."""
        allowed = self.charter.allow.scores if self.charter.allow.scores != "private" else ()
        agreed = find_model(self.agreed, task)
        if not allowed or agreed.scored is None:
            raise RefusalError("allow.scores", "no score may leave this silo")
        self.require_parameters(vector, agreed)
        scorer = Scorer.of(agreed.predicts, agreed.loss, [name for name in allowed if name != "loss"])
        found = scorer.score(agreed.learner.trained, vector, agreed.scored)
        return {name: found.loss if name == "loss" else found.metrics[name] for name in allowed}

    def require_budget(self) -> BudgetOpened:
        """The budget of the charter, which must be the one that the ledger holds, if it holds one of that name."""
        limit, ledger = self.charter.limit, self.charter.ledger
        account = Account(data=self.charter.data_name, budget=ledger.budget)
        budget = BudgetOpened(account=account, unit=Unit(limit.unit), epsilon=limit.epsilon, delta=limit.delta)
        if (self.ledger.state.budgets.get(account) or budget) != budget:
            raise RefusalError(
                "limit", f"the ledger holds the budget {account} with other limits; open another one by name"
            )
        return budget

    def policy_for(self, task: SiloTask) -> Policy:
        """The row that the task asks for, over this silo's own facts; its noise is what this silo adds."""
        limit = self.charter.limit
        if task.policy not in self.charter.allow.policies:
            raise RefusalError("allow.policies", f"the policy '{task.policy}' is not agreed to")
        trust = task.settings.trust
        seen = task.noise_multiplier if trust is None else trust.sum_noise(task.noise_multiplier)
        # A server that divides the noise of a sum among silos may be off by a rounding when it is put together again.
        if seen < limit.smallest_noise * (1 - 2**-50):
            raise RefusalError("limit.smallest_noise", f"a noise multiplier of {seen:g} is too small")
        if task.settings.clip_norm > limit.largest_clip:
            raise RefusalError("limit.largest_clip", f"a clip norm of {task.settings.clip_norm:g} is too large")
        if task.steps > limit.most_steps:
            raise RefusalError("limit.most_steps", f"{task.steps} steps in a round are too many")
        try:
            row = make_row(task.policy, task.settings, self.silo.facts)
        except WholegrainError as error:
            raise RefusalError("message", str(error)) from error
        if row.noise is not None:
            raise RefusalError("allow.policies", f"the policy '{task.policy}' adds no noise")
        return row.with_noise(task.noise_multiplier)

    def require_parameters(self, vector: Tensor, agreed: AgreedModel) -> None:
        """Refuse parameters that are not those of the model, or not all finite."""
        size, features = Layout.of(agreed.learner.model).size, self.dataset.features
        if tuple(vector.shape) != (size,):
            raise RefusalError(
                "parameters",
                f"there are {vector.numel()} parameters, and the model has {size}, for {features} features and"
                f" {self.dataset.task} in this silo",
            )
        if not bool(torch.isfinite(vector).all()):
            raise RefusalError("parameters", "the parameters are not all finite")

    def require_fit(self, agreed: AgreedModel, policy: Policy) -> None:
        """Refuse a model whose gradients cannot be clipped as the policy says."""
        learner = agreed.learner
        try:
            require_fit(learner.model, agreed.gradients, policy.clip, self.dataset, learner.frozen)
        except WholegrainError as error:
            raise RefusalError("allow.models", str(error)) from error

    def terms_for(self, task: SiloTask, policy: Policy) -> Terms:
        """On what terms the task's run is priced here: training, and beside it the scores that it asks for."""
        return local_terms((policy, self.silo.facts), task.scores)

    def open_guard(self, task: SiloTask, priced: Terms, noise: NoiseSource) -> Guard:
        """The guard of a run as this silo sees it, priced on these terms.

        All that an update depends on but round, parameters and noise is in the run's name: whatever is asked otherwise
        under the same name is another run, and pays for itself. So is a run with scores, if others are held out than
        before: somebody may have been trained on then and be scored now, and of one run people pay for one of the two.
        """
        budget = self.require_budget()
        account = budget.account
        agreed = TermsRecord.of(priced)
        asked_for = "\n".join(each.model_dump_json(exclude={"round"}) for each in (account, agreed, task))
        asked_for += "" if task.scores is None else f"\n{self.division}"
        name = f"{task.run}/{hashlib.sha256(asked_for.encode()).hexdigest()[:16]}"
        opening = RunOpened(
            run=name, account=account, spec=task.spec, policy=task.policy, noise=noise.name, terms=agreed
        )
        asked = {self.charter.silo: task.steps}
        stream = noise.identity if noise.repeats and task.settings.trust is None else None
        try:
            return Guard.open(self.ledger, opening, budget, asked, stream, self.accountant)
        except BudgetError as error:
            raise RefusalError("limit.epsilon", str(error)) from error


def public_facts(host: SiloService) -> dict[str, Any]:
    """What the silo says when it is asked: its name, public facts that a plan is made from, and what it agrees to.

    Guarantee: sizes are those that the charter declares; nothing here was counted.
    """
    facts = host.silo.facts
    return {
        "silo": facts.name,
        "items": facts.items,
        "subjects": facts.subjects,
        "items_per_subject": facts.items_per_subject,
        "knows_spans": facts.knows_spans,
        "features": host.dataset.features,
        **({"held_out": host.charter.held_out} if host.charter.allow.scores == "private" else {}),
        **host.dataset.task.stated(),
        **_inputs(host.dataset),
        "models": [each.task.model_dump(mode="json") for each in host.agreed],
    }


def _inputs(dataset: Dataset) -> dict[str, str]:
    """A digest of the declared features: silos of one model must agree in it. Bounds are declared, and not counted."""
    if dataset.layout is None:
        return {}
    declared = json.dumps(list(layout_facts(dataset.layout)["features"].items()))
    return {"inputs": hashlib.sha256(declared.encode()).hexdigest()}


def spent_by_silo(host: SiloService) -> Price:
    """What was spent from the charter's budget so far."""
    opened = host.require_budget()
    return account_price(opened, host.ledger.state.runs_of(opened.account), host.accountant)


def operator_status(host: SiloService) -> dict[str, Any]:
    """Where the silo stands, for its operator.

    Private: what is counted in the data, to be compared with the declared sizes; it is marked, and stays here.
    """
    limit, ledger = host.charter.limit, host.charter.ledger
    opened = host.require_budget()
    spent = spent_by_silo(host)
    whole = data_price(host.ledger.state, opened.account.data, opened.unit, host.accountant, opened.delta)
    facts = host.silo.facts
    return {
        "features": host.dataset.features,
        **host.dataset.task.stated(),
        "items": facts.items,
        "subjects": facts.subjects,
        "counted (not private)": f"{host.silo.data.items} items of {host.silo.data.subject_count} subjects",
        "items_per_subject": facts.items_per_subject,
        "unit": limit.unit,
        "epsilon": limit.epsilon,
        "delta": limit.delta,
        "epsilon_spent": spent.epsilon,
        "accountant": spent.way,
        "data": opened.account.data,
        "epsilon_spent_of_the_data": whole.epsilon,
        "smallest_noise": limit.smallest_noise,
        "policies": ", ".join(host.charter.allow.policies),
        "models": "; ".join(map(str, host.agreed)),
        "noise": host.fresh_noise().name,
        "ledger": ledger.path,
    }
