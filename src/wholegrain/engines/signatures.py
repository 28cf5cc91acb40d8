"""Answers that a silo signs, so that nobody else can give them and none can be given twice.

The transport knows nodes by numbers, and a registered node could send an answer in another's name. So every question
carries a nonce of the server's, and a silo signs the digests of the question and of its answer with its own key (ECDSA
over P-384, SHA-384). Run, round and parameters are part of the question: an answer to any other question does not fit.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict

from wholegrain.engines import wire

PURPOSE = b"wholegrain: a silo's answer\n"
ALGORITHM = ec.ECDSA(hashes.SHA384())


def sign_answer(key: ec.EllipticCurvePrivateKey, question: Message, answer: RecordDict) -> None:
    """Put the silo's signature into its answer to this question."""
    said = PURPOSE + wire.request_digest(question) + wire.answer_digest(answer)
    answer.config_records[wire.ANSWER][wire.SIGNATURE] = key.sign(said, ALGORITHM)


def is_signed(key: ec.EllipticCurvePublicKey, question: bytes, reply: Message) -> bool:
    """Whether the owner of the key gave this reply to the question with this digest."""
    signature = wire.settings_of(reply, wire.ANSWER).get(wire.SIGNATURE)
    if not isinstance(signature, bytes):
        return False
    try:
        key.verify(signature, PURPOSE + question + wire.answer_digest(reply.content), ALGORITHM)
    except InvalidSignature:
        return False
    return True
