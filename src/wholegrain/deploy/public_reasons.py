"""What a server is told when a silo refuses: the rule's name, and a sentence that is the same whatever the data.

The details stay in the silo's own log: they may say what other runs have spent, what the data is called, or what is
in it.
"""

from wholegrain.errors import RefusalError, WholegrainError

FAILED = "[silo] the task failed; the silo's own log says why"
"""What a server is told of an unforeseen error, whose text might hold private values."""

SENTENCES = {
    "allow.models": "the charter does not agree to this model, its options, its loss or its start",
    "allow.policies": "the charter does not agree to this policy",
    "allow.scores": "no score may leave this silo",
    "allow.trust": "the charter does not agree to release anything under this trust",
    "ledger": "the silo's ledger is not the one that it has signed for",
    "limit": "the silo's ledger holds this budget with other limits",
    "limit.epsilon": "the silo's budget does not allow this release",
    "limit.largest_clip": "the clip norm is larger than the charter allows",
    "limit.most_colluding": "the sum holds against fewer colluding silos than the charter asks for",
    "limit.most_steps": "a round has more steps than the charter allows",
    "limit.smallest_noise": "the noise multiplier is smaller than the charter allows",
    "link.peers": "the silos of the sum are not those whose keys the charter has",
    "message": "the message is not of the agreed form, or was answered before",
    "parameters": "the parameters do not fit the model, or are not all finite",
    "secure_sum": "the message does not belong to this silo's session of secure sums, or the round was answered before",
}
OTHERWISE = "the charter forbids it"


def public_reason(error: WholegrainError) -> str:
    """A refusal by its rule; any other error might hold private values, and is told in general words."""
    if not isinstance(error, RefusalError):
        return FAILED
    return f"[{error.rule}] {SENTENCES.get(error.rule, OTHERWISE)}"
