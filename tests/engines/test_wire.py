"""What travels arrives as it was sent; what is not of the agreed form is refused, whoever sends it."""

import ast
import contextlib
import inspect
import io
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from deployment import message, task, text_message, vector
from wholegrain.clipping.parameters import flatten
from wholegrain.engines import wire
from wholegrain.errors import RefusalError
from wholegrain.models.model_catalog import build
from wholegrain.models.trainable_part import train_part
from wholegrain.policies.policy_catalog import PolicySettings

floats = st.floats(width=32, allow_nan=False)


def read(facts: object) -> wire.SiloTask:
    return wire.read_task(text_message(wire.TASK, json.dumps(facts)))


def facts_of(**changes: object) -> dict[str, object]:
    return {**json.loads(task().model_dump_json()), **changes}


def carrying(array: Array, name: str = wire.VECTOR) -> Message:
    return message(RecordDict({wire.PARAMETERS: ArrayRecord({name: array})}))


def raw(data: bytes, *shape: int, dtype: str = "float32", stype: str = wire.RAW) -> Array:
    return Array(dtype, shape, stype, data)


def refuses(match: str) -> pytest.RaisesExc[RefusalError]:
    return pytest.raises(RefusalError, match=rf"^\[message\] .*{match}")


@given(st.lists(floats, max_size=50))
def test_parameters_arrive_to_the_last_bit(values: list[float]) -> None:
    sent = torch.tensor(values)
    found = wire.read_vector(message(wire.packed_task(task(), sent)))
    assert found.dtype is torch.float32
    assert found.numpy().tobytes() == sent.numpy().tobytes()


def test_whatever_is_not_finite_arrives_too_and_is_for_the_host_to_refuse() -> None:
    found = wire.read_vector(message(wire.packed_task(task(), vector(float("nan"), float("inf"), -float("inf")))))
    assert found[:3].isfinite().tolist() == [False] * 3


def test_parameters_that_arrive_are_the_readers_own() -> None:
    carried = message(wire.packed_task(task(), vector(1.0)))
    wire.read_vector(carried).zero_()
    assert wire.read_vector(carried)[0] == 1


def test_bytes_on_the_wire_are_little_endian_floats_and_nothing_else() -> None:
    array = wire.packed_vector(vector(1.0, -2.5))[wire.VECTOR]
    assert array.data == vector(1.0, -2.5).numpy().astype("<f4").tobytes()
    assert (array.dtype, array.shape, array.stype) == ("float32", (8,), "wholegrain.float32")


def test_a_vector_that_is_a_view_or_needs_a_gradient_is_packed_by_its_values() -> None:
    wide = torch.arange(8.0, requires_grad=True)
    found = wire.read_vector(message(wire.packed_task(task(), wide[::2])))
    assert found.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("train", ["all", "head", "biases", "low_rank", "prefix", ("blocks.1.out.*", "head.*")])
def test_a_message_is_as_long_as_what_is_trained(train: str | tuple[str, ...]) -> None:
    """Of the model's frozen parameters nothing travels: a task and its parameters, and a little around them."""
    net = build("causal_transformer", 16, 80, 0)
    whole = sum(parameter.numel() for parameter in net.parameters())
    trained = flatten(train_part(net, train, rank=2, prefix=4, seed=0))
    said = wire.StartTask.model_validate({"digest": "a" * 64, "train": train})
    asked = task(model="causal_transformer", start=said)
    size = recorddict_to_proto(wire.packed_task(asked, trained)).ByteSize()
    assert 4 * trained.numel() < size < 4 * trained.numel() + 2000
    assert train == "all" or trained.numel() < whole / 4
    assert wire.read_task(message(wire.packed_task(asked, trained))) == asked


PRINTABLE = st.characters().filter(str.isprintable)


@given(
    rate=st.floats(1e-9, 1),
    clip=st.floats(1e-9, 1e9),
    noise=st.floats(1e-300, 1e300),
    rest=st.tuples(st.integers(0, 10**9), st.integers(1, 10**6), st.text(PRINTABLE, min_size=1, max_size=200)),
    options=st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans())),
)
def test_a_task_arrives_as_it_was_sent(rate, clip, noise, rest, options) -> None:
    round, steps, name = rest
    settings = PolicySettings(rate=rate, clip_norm=clip, group_cap=2, items_per_step=3)
    sent = task(
        round=round, steps=steps, run=name, settings=settings, noise_multiplier=noise, options=options, model=name,
        start=wire.StartTask(digest="0" * 64, train="low_rank", rank=steps % 4096 + 1),
    )  # fmt: skip
    assert wire.read_task(message(wire.packed_task(sent, vector()))) == sent


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_an_answer_arrives_as_it_was_sent(facts: dict[str, object]) -> None:
    assert wire.read_answer(message(wire.packed_answer(facts))) == facts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": {"rate": 2}}, "rate"),
        ({"settings": {"rate": 0}}, "rate"),
        ({"settings": {}}, "rate or batch_size"),
        ({"settings": {"rate": 0.5, "batch_size": 3}}, "rate or batch_size"),
        ({"settings": {"batch_size": 10**30}}, "batch_size"),
        ({"settings": {"rate": 0.5, "clip_norm": float("nan")}}, "clip_norm"),
        ({"settings": {"rate": 0.5, "clip_norm": float("inf")}}, "clip_norm"),
        ({"settings": {"rate": 0.5, "clip_norm": "1"}}, "clip_norm"),
        ({"settings": {"rate": 0.5, "group_cap": 0}}, "group_cap"),
        ({"settings": {"rate": 0.5, "items_per_step": -1}}, "items_per_step"),
        ({"settings": {"rate": True}}, "rate"),
        ({"settings": {"rate": 0.5, "noise": 0}}, "noise"),
        ({"settings": None}, "settings"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier"),
        ({"noise_multiplier": "2"}, "noise_multiplier"),
        ({"noise_multiplier": None}, "noise_multiplier"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"round": -1}, "round"),
        ({"round": 10**10}, "round"),
        ({"round": 0.5}, "round"),
        ({"steps": 0}, "steps"),
        ({"steps": 10**7}, "steps"),
        ({"steps": True}, "steps"),
        ({"run": ""}, "run"),
        ({"run": "x" * 201}, "run"),
        ({"run": None}, "run"),
        ({"model": ["logistic"]}, "model"),
        ({"options": []}, "options"),
        ({"start": "backbone.safetensors"}, "start"),
        ({"start": {}}, "start.digest"),
        ({"start": {"digest": "A" * 64, "train": "head"}}, "start.digest"),
        ({"start": {"digest": "a" * 63, "train": "head"}}, "start.digest"),
        ({"start": {"digest": "a" * 64 + "\n", "train": "head"}}, "start.digest"),
        ({"start": {"digest": "a" * 64}}, "start.train"),
        ({"start": {"digest": "a" * 64, "train": "tail"}}, "start.train"),
        ({"start": {"digest": "a" * 64, "train": "low_rank", "rank": 0}}, "start.rank"),
        ({"start": {"digest": "a" * 64, "train": "low_rank", "rank": True}}, "start.rank"),
        ({"start": {"digest": "a" * 64, "train": "head", "file": "x"}}, "start.file"),
        ({"charter": "other.toml"}, "charter"),
        ({"items_per_subject": 1}, "items_per_subject"),
    ],
    ids=str,
)
def test_a_task_that_is_not_of_the_agreed_form_is_refused_by_name(change: dict[str, object], said: str) -> None:
    with refuses(f"the task is not of the agreed form: .*{said}"):
        read(facts_of(**change))


@pytest.mark.parametrize("key", sorted(set(facts_of()) - {"options", "start"}))
def test_nothing_of_a_task_may_be_missing(key: str) -> None:
    with refuses(key):
        read({name: value for name, value in facts_of().items() if name != key})


NOT_JSON = ["", "{", "nonsense", "[" * 100_000, '{"run":' * 100_000, "\x00", '{"run": "\\ud800"}', "1" * 5000]


@pytest.mark.parametrize("text", [*NOT_JSON, "[]", "null", "3", '"text"'], ids=lambda text: repr(text[:12]))
def test_garbage_is_no_task(text: str) -> None:
    with refuses("the task is not of the agreed form"):
        wire.read_task(text_message(wire.TASK, text))


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, "1" * 5000, "[]", "null", "3", '"text"'])
def test_garbage_is_no_answer(text: str) -> None:
    with refuses("the answer is not"):
        wire.read_answer(text_message(wire.ANSWER, text))


@given(st.text())
def test_no_text_at_all_gives_another_error_than_a_refusal(text: str) -> None:
    for reader, record in ((wire.read_task, wire.TASK), (wire.read_answer, wire.ANSWER)):
        with contextlib.suppress(RefusalError):
            reader(text_message(record, text))


@pytest.mark.parametrize(
    "carried",
    [
        message(),
        message(Error(0, "it failed")),
        message(RecordDict({"other": ConfigRecord({"json": "{}"})})),
        message(RecordDict({wire.TASK: ConfigRecord({"text": "{}"}), wire.ANSWER: ConfigRecord({})})),
        message(RecordDict({wire.TASK: ConfigRecord({"json": b"{}"}), wire.ANSWER: ConfigRecord({"json": 3})})),
        message(RecordDict({wire.TASK: MetricRecord({"json": 1}), wire.ANSWER: MetricRecord({"json": 1})})),
        message(RecordDict({wire.TASK: ConfigRecord({"json": ["{}"]}), wire.ANSWER: ConfigRecord({"json": ["{}"]})})),
    ],
    ids=["empty", "error", "other record", "other key", "other type", "other kind", "a list"],
)
def test_a_message_without_what_is_looked_for_is_refused(carried: Message) -> None:
    with refuses("it has no task"):
        wire.read_task(carried)
    with refuses("it has no answer"):
        wire.read_answer(carried)
    with refuses("not one flat buffer of float32"):
        wire.read_vector(carried)


def npy(values: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, values, **options)
    return file.getvalue()


class Bomb:
    """Unpickling it would be noticed."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("something was unpickled",)


@pytest.mark.parametrize(
    "carried",
    [
        carrying(raw(bytes(8), 2), name="other"),
        carrying(raw(bytes(8), 3)),
        carrying(raw(bytes(8), 1)),
        carrying(raw(bytes(8), 2, 1)),
        carrying(raw(bytes(8))),
        carrying(raw(bytes(8), -2)),
        carrying(raw(bytes(7), 1)),
        carrying(raw(bytes(7), 2)),
        carrying(raw(bytes(16), 2, dtype="float64")),
        carrying(raw(bytes(8), 2, dtype="float64")),
        carrying(raw(bytes(8), 2, dtype="object")),
        carrying(raw(bytes(8), 2, stype="")),
        carrying(raw(bytes(8), 2, stype="numpy.ndarray")),
        carrying(Array(np.zeros(2, np.float32))),
        carrying(raw(npy(np.array([Bomb()], object), allow_pickle=True), 1, stype="numpy.ndarray")),
        carrying(raw(pickle.dumps(Bomb()), 1, stype="pickle")),
        carrying(raw(pickle.dumps(Bomb()), len(pickle.dumps(Bomb())) // 4 + 1)),
        message(RecordDict({wire.PARAMETERS: ArrayRecord()})),
        message(RecordDict({wire.PARAMETERS: ConfigRecord({wire.VECTOR: bytes(8)})})),
    ],
)
def test_parameters_that_are_not_one_flat_buffer_are_refused(carried: Message) -> None:
    with refuses("not one flat buffer of float32"):
        wire.read_vector(carried)


def test_a_pickle_of_the_right_length_is_only_taken_for_numbers() -> None:
    data = pickle.dumps(Bomb())
    data += bytes(-len(data) % 4)
    found = wire.read_vector(carrying(raw(data, len(data) // 4)))
    assert found.numpy().tobytes() == data


def test_no_parameters_at_all_are_a_flat_buffer_of_none() -> None:
    assert wire.read_vector(carrying(raw(b"", 0))).shape == (0,)


def test_nothing_on_the_path_can_unpickle_or_run_anything() -> None:
    tree = ast.parse(inspect.getsource(wire))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not names & {"pickle", "load", "eval", "exec", "import_module", "allow_pickle", "numpy.load"}


def test_the_usual_loss_is_not_said() -> None:
    """Messages of servers and silos that know no other stay what they were."""
    assert '"loss"' not in task().model_dump_json()
    assert '"loss":"multi_margin"' in task(loss="multi_margin").model_dump_json()
