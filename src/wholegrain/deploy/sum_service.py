"""A silo's part in secure sums, under the rules of its charter.

Who the silos are, with which keys, how many of them may collude and how much noise a sum must hold at least: all of
that is the charter's, and a server's word is taken for none of it. The price of a sum depends on the other silos, too.
Their sizes and bounds are signed by those silos together with their keys. That all of them add the same noise, clip to
the same norm and answer the same task is the `terms` that each of them has signed.

A round is paid for in the ledger before anything is masked, and answered once: the ledger remembers it.
"""

import hashlib
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from pydantic import TypeAdapter, ValidationError

from wholegrain.deploy.certificates import load_public_key, public_line
from wholegrain.deploy.model_agreement import find_model
from wholegrain.deploy.score_service import require_score
from wholegrain.deploy.silo_service import SiloService
from wholegrain.deploy.sum_session import SumSession
from wholegrain.engines.secure_sum_engine import ConsentRequest, KeysRequest, MaskRequest, SumReply, SumRequest
from wholegrain.engines.signatures import ALGORITHM
from wholegrain.engines.wire import SiloTask
from wholegrain.errors import BudgetError, RefusalError, SpecError, WholegrainError
from wholegrain.federation.rounds import digest
from wholegrain.federation.secure_sum import RULE, MaskedPart, Member, SessionKeys
from wholegrain.federation.sum_scale import SumScale, require_score_noise
from wholegrain.policies.guarantees import Row
from wholegrain.policies.policy_catalog import make_row
from wholegrain.policies.silo_facts import SiloFacts
from wholegrain.policies.silo_limit import own_terms
from wholegrain.privacy.pricing import Terms
from wholegrain.privacy.trust import SecureSum
from wholegrain.silo.score_release import HeldOut, ScoreMaker
from wholegrain.silo.training import Trainer

FACTS = TypeAdapter(SiloFacts)
SCORES = "\nscores"
"""What tells the terms of a sum of scores from those of a sum of updates."""


def answer_sum(host: SiloService, task: SiloTask, request: SumRequest, *, scores: bool = False) -> SumReply:
    """What a message of a secure sum asks for, or a refusal: a sum of updates, or of private scores.

    Each of the two has a session of its own, whose keys are signed for it alone.
    """
    if scores:
        require_score(host, task)
    if isinstance(request, KeysRequest):
        return begin_session(host, task, scores=scores)
    session = host.sums.of(scores)
    if session is None or session.task != _without_round(task):
        raise RefusalError(RULE, "there is no session for this task; it begins with keys")
    if isinstance(request, MaskRequest):
        return (mask_score if scores else mask_part)(host, session, task, request)
    if isinstance(request, ConsentRequest):
        return session.member.sign_survivors(request.round, request.survivors, lambda text: _sign(host, text))
    return session.member.help_open(request, lambda *said: _verify(host, *said))


def begin_session(host: SiloService, task: SiloTask, *, scores: bool = False) -> SessionKeys:
    """Fresh keys for a sum on the terms of this task, which the charter must allow; the former session ends."""
    rules = _require_sum(host, task)
    agreed = find_model(host.agreed, task)
    host.policy_for(task)
    member = Member(
        host.charter.silo,
        _terms_of(task, host.link if task.settings.by_span else "", SCORES if scores else ""),
        rules,
        _roster(host),
        FACTS.dump_json(host.silo.facts).decode(),
    )
    host.sums.keep(SumSession(_without_round(task), member, agreed), scores)
    return member.keys(lambda text: _sign(host, text))


def mask_part(host: SiloService, session: SumSession, task: SiloTask, request: MaskRequest) -> MaskedPart:
    """The silo's masked part of a sum.

    Guarantee: paid for in the ledger before any item is read, at the price of a sum over the silos of this session, and
    once for each round of a run.
    """
    silo, agreed = host.charter.silo, session.agreed
    priced = _accept(host, session, task, request)
    policy = host.policy_for(task)
    host.require_fit(agreed, policy)
    noise = host.fresh_noise()
    guard = host.open_guard(task, priced, noise)
    try:
        paid = guard.reserve(task.round, {silo: 1}, digest(request.vector), once_among=f"{task.run}/")
    except BudgetError as error:
        raise RefusalError("limit.epsilon", str(error)) from error
    facts = {"run": guard.run, "round": task.round, "steps": 1}
    host.note("granted", {**facts, "epsilon_spent": paid.account})
    trainer = Trainer(clipped_sum=agreed.gradients, noise=noise, learning_rate=task.learning_rate)
    part = trainer.add_to_sum(agreed.silo, policy, request.vector, task.round)
    masked = session.member.mask(task.round, part.numpy())
    guard.confirm(paid, [silo])
    host.note("released", facts)
    return masked


def mask_score(host: SiloService, session: SumSession, task: SiloTask, request: MaskRequest) -> MaskedPart:
    """The silo's masked part of a sum of private scores.

    Guarantee: as of a part of training: paid for before any item is read, side by side with training, and once for each
    round of a run.
    """
    silo, agreed, form = host.charter.silo, session.agreed, require_score(host, task)
    priced = _accept(host, session, task, request)
    noise = host.fresh_noise()
    guard = host.open_guard(task, priced, noise)
    try:
        paid = guard.reserve_scores(task.round, [silo], digest(request.vector), once_among=f"{task.run}/")
    except BudgetError as error:
        raise RefusalError("limit.epsilon", str(error)) from error
    facts = {"run": guard.run, "round": task.round, "scores": 1}
    host.note("granted", {**facts, "epsilon_spent": paid.account})
    maker = ScoreMaker(model=agreed.learner.trained, loss=agreed.loss, task=agreed.predicts, noise=noise)
    held_out = HeldOut(agreed.scored, agreed.held_out.spans)
    masked = session.member.mask(task.round, maker.add_to_sum(silo, held_out, form, request.vector, task.round))
    guard.confirm(paid, [silo])
    host.note("released", facts)
    return masked


def _accept(host: SiloService, session: SumSession, task: SiloTask, request: MaskRequest) -> Terms:
    """Take the keys of the session and its parameters; on what terms a sum over its silos is priced here."""
    session.member.accept(request.keys, lambda *said: _verify(host, *said))
    host.require_parameters(request.vector, session.agreed)
    rows = [_row(task, each) for each in request.keys]
    try:
        SumScale.of(rows, request.vector.numel())  # refuses noise that is too small for its grid
        if task.scores is not None:
            require_score_noise(task.scores)
        return own_terms(rows, host.charter.silo, _span(host), task.scores)
    except WholegrainError as error:
        raise RefusalError("message", str(error)) from error


def _require_sum(host: SiloService, task: SiloTask) -> SecureSum:
    """The sum that the task asks for, if the charter agrees to such a one."""
    charter, rules = host.charter, task.settings.trust
    if rules is None or "secure_sum" not in charter.allow.trust:
        raise RefusalError("allow.trust", "the charter agrees to no secure sum")
    if host.key is None or charter.link is None:
        raise RefusalError("allow.trust", "a secure sum needs this silo's key (link.key)")
    if rules.silos != len(_roster(host)):
        raise RefusalError(
            "link.peers", f"the sum is over {rules.silos} silos, and the charter has the keys of {len(_roster(host))}"
        )
    if rules.colluding < charter.limit.most_colluding:
        raise RefusalError(
            "limit.most_colluding", f"the sum holds against {rules.colluding} colluding silos, which are too few"
        )
    if task.steps != 1:
        raise RefusalError("message", f"a secure sum adds up one step of every silo in a round, not {task.steps}")
    return rules


def _row(task: SiloTask, keys: SessionKeys) -> Row:
    """Another silo's row, from what it has signed of itself."""
    try:
        facts = FACTS.validate_json(keys.statement)
        row = make_row(task.policy, task.settings, facts).with_noise(task.noise_multiplier)
    except (ValidationError, SpecError) as error:
        raise RefusalError(RULE, f"what '{keys.silo}' says of itself cannot be read") from error
    if facts.name != keys.silo:
        raise RefusalError(RULE, f"'{keys.silo}' speaks of '{facts.name}'")
    return row, facts


def _span(host: SiloService) -> int:
    """M, as the charter has it: a subject may be in all silos, unless the operator knows better."""
    return host.charter.limit.span or len(_roster(host))


def _without_round(task: SiloTask) -> SiloTask:
    return task.model_copy(update={"round": 0})


def _terms_of(task: SiloTask, link: str, purpose: str) -> str:
    """What all silos must agree on: everything in the task but the round, by which link they know spans, and whether
    updates or scores are added up.
    """
    return hashlib.sha256(f"{_without_round(task).model_dump_json()}\n{link}{purpose}".encode()).hexdigest()


def _keys(host: SiloService) -> Mapping[str, str]:
    """The public keys of all silos, this one's included, from the charter."""
    assert host.charter.link is not None
    assert host.key is not None
    return {**host.charter.link.peers, host.charter.silo: public_line(host.key)}


def _roster(host: SiloService) -> tuple[str, ...]:
    return tuple(sorted(_keys(host)))


def _sign(host: SiloService, text: bytes) -> bytes:
    assert host.key is not None
    return host.key.sign(text, ALGORITHM)


def _verify(host: SiloService, silo: str, text: bytes, signature: bytes) -> bool:
    """Whether a silo has signed a text, by the key that the charter has for it."""
    line = _keys(host).get(silo)
    if line is None:
        return False
    try:
        load_public_key(line, f"silo '{silo}'").verify(signature, text, ALGORITHM)
    except InvalidSignature:
        return False
    return True
