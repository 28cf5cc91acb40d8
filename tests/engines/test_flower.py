"""Silos behind Flower: whatever they do, the engine gives one answer for each of the cohort, in its order."""

import time
from collections.abc import Iterable

import pytest
import torch

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from deployment import task, text_message, vector
from grids import Clock, FakeGrid, Node, within_a_server_app
from wholegrain.engines import wire
from wholegrain.engines.flower import FORGED, HEADLESS, Flower
from wholegrain.engines.ledger_heads import SentHead, key_line, put_head, state_head
from wholegrain.engines.roll_call import RollCall
from wholegrain.engines.signatures import sign_answer
from wholegrain.federation.aggregation import average
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate
from wholegrain.privacy.ledger import Head

NAMES = ("north", "south", "west")


def silo(name: str, update: float = 0.0) -> Node:
    """A silo that moves all parameters by so much."""

    def answer(message: Message) -> RecordDict:
        if message.metadata.message_type == "query":
            return wire.packed_answer({"silo": name, "items": 10, "subjects": 5})
        return wire.packed_answer({"silo": name}, wire.read_vector(message) + update)

    return answer


def failing(name: str, answer: RecordDict | Error | None) -> Node:
    """A silo that says who it is, and then this."""
    return lambda message: silo(name)(message) if message.metadata.message_type == "query" else answer


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return within_a_server_app(monkeypatch)


def engine_on(grid: Grid, patience: float = 0.5, names: Iterable[str] = NAMES) -> Flower:
    return Flower(grid, {name: task() for name in names}, patience)


def play(engine: Flower, *names: str, round: int = 0) -> list[SiloUpdate | SiloFault]:
    return list(engine.run(RoundTask(round, names or NAMES, 2, vector(1.0))))


def told(answers: list[SiloUpdate | SiloFault]) -> dict[str, str]:
    return {answer.silo: answer.reason if isinstance(answer, SiloFault) else "update" for answer in answers}


def all_nodes() -> dict[int, Node]:
    return {11: silo("north", 1), 12: silo("south", 2), 13: silo("west", 3)}


@pytest.mark.parametrize("slow", [{}, {11: 5, 12: 2}, {13: 1, 12: 2, 11: 3}, {12: 9}], ids=str)
@pytest.mark.parametrize("cohort", [NAMES, ("west", "north"), ("south",), ()], ids=str)
def test_answers_come_in_the_order_of_the_cohort_whatever_the_order_of_arrival(
    slow: dict[int, int], cohort: tuple[str, ...]
) -> None:
    answers = list(engine_on(FakeGrid(all_nodes(), slow), 5).run(RoundTask(0, cohort, 2, vector(1.0))))
    assert [answer.silo for answer in answers] == list(cohort)
    moved = {"north": 1, "south": 2, "west": 3}
    for answer in answers:
        assert isinstance(answer, SiloUpdate)
        assert torch.equal(answer.vector, vector(1.0) + moved[answer.silo])


def test_an_answer_is_handed_on_as_soon_as_its_turn_comes(clock: Clock) -> None:
    nodes = {**all_nodes(), 13: failing("west", None)}
    answers = engine_on(FakeGrid(nodes), patience=2).run(RoundTask(0, NAMES, 2, vector()))
    assert [next(answers).silo, next(answers).silo] == ["north", "south"]
    assert clock.now < 1.5


def test_a_silo_is_asked_for_the_round_and_steps_of_the_task_and_for_nothing_else_that_is_new() -> None:
    grid = FakeGrid(all_nodes())
    play(engine_on(grid), "south", round=4)
    (sent,) = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert wire.read_task(sent) == task(round=4, steps=2)
    assert torch.equal(wire.read_vector(sent), vector(1.0))
    assert (sent.metadata.dst_node_id, sent.metadata.group_id, sent.metadata.ttl) == (12, "4", 0.5)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "it did not answer in time"),
        (Error(2, "ClientApp stopped responding."), "it failed: ClientApp stopped responding."),
        (wire.packed_answer({"refused": "[limit.epsilon] no"}), "it refuses: [limit.epsilon] no"),
        (RecordDict(), "its answer cannot be read: [message] it has no answer"),
        (wire.packed_answer({}), "its answer cannot be read: [message] the parameters are not one flat buffer"),
        (text_message(wire.ANSWER, "nonsense").content, "its answer cannot be read: [message] the answer is not JSON"),
        (
            text_message(wire.ANSWER, "[" * 99_999).content,
            "its answer cannot be read: [message] the answer is not JSON",
        ),
        (
            RecordDict(
                {
                    wire.ANSWER: ConfigRecord({"json": "{}"}),
                    wire.PARAMETERS: ArrayRecord({wire.VECTOR: Array("float32", (9,), wire.RAW, bytes(4))}),
                }
            ),
            "its answer cannot be read: [message] the parameters are not one flat buffer",
        ),
    ],
    ids=["silent", "error", "refused", "empty", "no parameters", "nonsense", "deep", "wrong shape"],
)
def test_a_silo_that_gives_nothing_usable_is_a_fault_with_its_reason(
    answer: RecordDict | Error | None, reason: str
) -> None:
    answers = play(engine_on(FakeGrid({**all_nodes(), 12: failing("south", answer)})))
    assert [found.silo for found in answers] == list(NAMES)
    assert told(answers)["south"].startswith(reason)
    assert isinstance(answers[0], SiloUpdate)
    assert isinstance(answers[2], SiloUpdate)


def test_a_silos_own_words_are_cut_to_a_line_that_every_record_can_hold() -> None:
    words = '"a\\nb \\ud800' + "x" * 5000 + '"'
    node = failing("south", text_message(wire.ANSWER, f'{{"refused": {words}}}').content)
    (fault,) = play(engine_on(FakeGrid({12: node})), "south")
    assert isinstance(fault, SiloFault)
    assert fault.reason.startswith("it refuses: a b xxx")
    assert len(fault.reason.encode()) < 400


def test_a_silo_that_is_not_connected_is_a_fault_at_once(clock: Clock) -> None:
    nodes = all_nodes()
    del nodes[12]
    assert told(play(engine_on(FakeGrid(nodes), patience=60))) == {
        "north": "update",
        "south": "it is not connected",
        "west": "update",
    }
    assert clock.now < 30


@pytest.mark.parametrize("ids", [[], [""], [None]], ids=str)
def test_a_task_that_the_superlink_will_not_take_is_a_fault_of_every_silo_it_was_for(
    ids: list[str], clock: Clock
) -> None:
    grid = FakeGrid(all_nodes())
    grid.refuses = lambda message: ids
    assert set(told(play(engine_on(grid, patience=60))).values()) == {"the task could not be sent to it"}
    assert clock.now < 30


def test_silos_are_asked_once_who_they_are() -> None:
    grid = FakeGrid(all_nodes())
    engine = engine_on(grid)
    for round in range(3):
        play(engine, round=round)
    assert sorted(grid.asked("query")) == [11, 12, 13]
    assert sorted(grid.asked("train")) == sorted([11, 12, 13] * 3)


def test_a_silo_that_comes_back_under_a_new_node_is_found_again() -> None:
    grid = FakeGrid(all_nodes())
    engine = engine_on(grid)
    play(engine)
    del grid.nodes[12]
    assert told(play(engine, round=1))["south"] == "it is not connected"
    grid.nodes[22] = silo("south", 7)
    assert set(told(play(engine, round=2)).values()) == {"update"}
    assert grid.asked("train")[-3:].count(22) == 1
    grid.nodes[12] = silo("south", 8)  # the old one is back: whoever spoke last speaks for it
    assert grid.asked("query").count(12) == 1
    play(engine, round=3)
    assert grid.asked("train")[-3:].count(22) == 1


def test_a_node_that_is_there_before_the_engine_knows_it_is_not_asked_to_train() -> None:
    grid = FakeGrid({**all_nodes(), 14: failing("", None)})
    play(engine_on(grid))
    assert 14 not in grid.asked("train")


def test_whoever_does_not_say_who_it_is_is_mentioned_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid({10: lambda message: Error(9, "The FAB could not be verified."), 11: silo("north")})
    play(engine_on(grid), "north", "south")
    assert "node 10 does not say which silo it is: The FAB could not be verified." in caplog.text


@pytest.mark.parametrize(
    "stranger",
    [
        silo("east"),
        silo(""),
        lambda message: None,
        lambda message: RecordDict(),
        lambda message: Error(1, "no such app"),
        lambda message: wire.packed_answer({"silo": ["north"]}),
        lambda message: wire.packed_answer({"silo": None}),
        lambda message: text_message(wire.ANSWER, "[1]").content,
    ],
    ids=["unknown", "nameless", "silent", "empty", "error", "list", "null", "not an object"],
)
def test_whoever_is_no_silo_of_the_run_is_ignored(stranger: Node) -> None:
    grid = FakeGrid({10: stranger, **all_nodes(), 99: stranger})
    answers = play(engine_on(grid))
    assert set(told(answers).values()) == {"update"}
    assert not {10, 99} & set(grid.asked("train"))


def test_of_two_nodes_that_claim_one_name_the_newest_alone_speaks_for_it() -> None:
    grid = FakeGrid({**all_nodes(), 14: silo("south", 100)})
    answers = play(engine_on(grid))
    assert [answer.silo for answer in answers] == list(NAMES)
    assert len(grid.asked("train")) == 3
    assert not {12, 14} <= set(grid.asked("train"))


def test_an_answer_counts_for_the_silo_that_was_asked_whatever_it_calls_itself() -> None:
    grid = FakeGrid({**all_nodes(), 12: failing("south", wire.packed_answer({"silo": "north"}, vector(9.0)))})
    answers = play(engine_on(grid))
    assert [answer.silo for answer in answers] == list(NAMES)
    assert isinstance(answers[0], SiloUpdate)
    assert answers[0].vector[0] == 2
    assert isinstance(answers[1], SiloUpdate)
    assert answers[1].vector[0] == 9


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.full((8,), float("nan")), torch.full((8,), float("inf"))])
def test_parameters_that_cannot_be_averaged_are_carried_and_left_to_the_mean(wrong: torch.Tensor) -> None:
    grid = FakeGrid({**all_nodes(), 12: failing("south", wire.packed_answer({}, wrong))})
    mean = average(play(engine_on(grid)), dict.fromkeys(NAMES, 1.0), size=8)
    assert mean.used == ("north", "west")
    assert [fault.silo for fault in mean.faults] == ["south"]
    assert mean.vector is not None
    assert mean.vector[0] == 3


def test_waiting_ends_when_all_are_there() -> None:
    nodes = all_nodes()
    grid = FakeGrid({11: nodes[11]})
    looks = iter(range(100))

    def ids() -> list[int]:
        if next(looks) == 3:
            grid.nodes |= nodes
        return list(grid.nodes)

    grid.get_node_ids = ids  # type: ignore[method-assign]
    assert engine_on(grid).wait_for(set(NAMES), patience=60) == set(NAMES)
    assert next(looks) < 20


def test_waiting_ends_with_the_patience_and_says_who_is_there(clock: Clock) -> None:
    grid = FakeGrid({11: silo("north"), 14: silo("east")})
    assert engine_on(grid).wait_for(set(NAMES), patience=0.2) == {"north"}
    assert 0.2 <= clock.now < 30


def test_a_late_reply_to_an_earlier_round_is_not_taken_for_this_one() -> None:
    grid = FakeGrid(all_nodes())
    engine = engine_on(grid)
    play(engine)
    grid.slow = {12: 10**9}
    assert told(play(engine, round=1))["south"] == "it did not answer in time"
    grid.slow, grid.nodes[12] = {}, silo("south", 7)
    (late,) = grid._replies
    grid._replies[late] = (0, grid._replies[late][1])
    _, south, _ = play(engine, round=2)
    assert isinstance(south, SiloUpdate)
    assert torch.equal(south.vector, vector(1.0) + 7)


def test_a_silo_that_leaves_in_a_round_is_not_waited_for(clock: Clock) -> None:
    grid = FakeGrid(all_nodes())

    def leave(message: Message) -> RecordDict | None:
        if message.metadata.message_type == "query":
            return silo("west")(message)
        del grid.nodes[13]
        return None

    grid.nodes[13] = leave
    answers = told(play(engine_on(grid, patience=60)))
    assert answers == {"north": "update", "south": "update", "west": "it has left in the middle of the round"}
    assert clock.now < 30


def test_a_silo_that_is_not_what_the_plan_was_made_for_is_asked_for_nothing() -> None:
    grid = FakeGrid(all_nodes())
    engine = Flower(grid, {name: task() for name in NAMES}, 5, {"west": {"items": 11}, "north": {"items": 10}})
    answers = told(play(engine))
    assert answers["west"] == "it has items = 10, and the plan was made for 11"
    assert answers["north"] == "update"
    assert 13 not in grid.asked("train")


def test_silos_that_declare_other_features_are_told_apart_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    def declaring(name: str, inputs: str) -> Node:
        def answer(message: Message) -> RecordDict:
            if message.metadata.message_type == "query":
                return wire.packed_answer({"silo": name, "items": 10, "subjects": 5, "inputs": inputs})
            return silo(name)(message)

        return answer

    alike = {11: declaring("north", "a"), 12: declaring("south", "a"), 13: silo("west")}
    play(engine_on(FakeGrid(alike)))
    assert "features" not in caplog.text
    play(engine_on(FakeGrid({**alike, 12: declaring("south", "b")})))
    assert "silo 'south' declares other features than 'north', or in another order" in caplog.text


# Names are bound to keys.

KEYS = {name: ec.generate_private_key(ec.SECP384R1()) for name in NAMES}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}


def signing(
    name: str, update: float = 0.0, key: str | None = None, at: int | None = None, entries: Iterable[int] = ()
) -> Node:
    """A silo that signs what it says, with its own key or with another's; `at` is when, by its clock.

    `entries` are how many its ledger has, answer by answer; then one.
    """
    counts = iter(entries)

    def answer(message: Message) -> RecordDict:
        content = silo(name, update)(message)
        assert isinstance(content, RecordDict)
        if name:
            head = Head(next(counts, 1), "a" * 64)
            put_head(content, state_head(KEYS[key or name], name, head, at or time.time_ns()))
        sign_answer(KEYS[key or name], message, content)
        return content

    return answer


def keyed(grid: Grid) -> Flower:
    return Flower(grid, {name: task() for name in NAMES}, 5, keys=PUBLIC)


def test_silos_that_sign_with_their_keys_are_heard() -> None:
    nodes = {number: signing(name, number) for number, name in enumerate(NAMES, start=11)}
    assert set(told(play(keyed(FakeGrid(nodes)))).values()) == {"update"}


@pytest.mark.parametrize(
    "impostor",
    [silo("north", 100), signing("north", 100, key="south"), signing("", key="north")],
    ids=["no signature", "another silo's key", "no name"],
)
def test_an_impostor_neither_replaces_a_silo_nor_ends_the_run(impostor: Node, caplog: pytest.LogCaptureFixture) -> None:
    """It comes first and last, and says that its sizes are others, too, which would abort the run."""
    real = {number: signing(name, 1) for number, name in enumerate(NAMES, start=11)}
    grid = FakeGrid({10: impostor, **real, 99: impostor})
    engine = keyed(grid)
    engine.expected = {"north": {"items": 10}}
    answers = play(engine)
    assert set(told(answers).values()) == {"update"}
    assert all(isinstance(each, SiloUpdate) and each.vector[0] == 2 for each in answers)
    assert not engine.misfits
    assert not {10, 99} & set(grid.asked("train"))
    assert "without that silo's key: it is refused" in caplog.text


def test_what_a_silo_says_cannot_steer_the_servers_terminal(caplog: pytest.LogCaptureFixture) -> None:
    """Names, refusals and facts are a silo's own words: no line of theirs in the log, and no control characters."""
    words = "x\x1b[2J\x9b31m\r\nround 0 done\u2028\u202e\x7f"
    nodes = {10: silo(words), 11: signing("north", 1), 12: silo("south"), 13: silo("west")}
    play(keyed(FakeGrid(nodes)))
    assert "calls itself 'x [2J 31m round 0 done'" in caplog.text
    assert all(line.isprintable() for line in caplog.messages)


def test_an_answer_that_does_not_say_where_its_ledger_stands_is_a_fault() -> None:
    """Nor does one that is dated in the future: whoever believed it could not tell a later one from an older one."""

    def silent(message: Message) -> RecordDict:
        content = silo("north", 1)(message)
        assert isinstance(content, RecordDict)
        sign_answer(KEYS["north"], message, content)
        return content

    nodes = {11: silent, 12: signing("south", 1, at=2**63 - 1), 13: signing("west", 1)}
    assert told(play(keyed(FakeGrid(nodes)))) == {"north": HEADLESS, "south": HEADLESS, "west": "update"}


def test_a_silo_whose_ledger_was_put_back_does_not_answer_a_roll_call(caplog: pytest.LogCaptureFixture) -> None:
    """No answer of its own would count: a round is not worth paying for on its account."""
    nodes = {11: signing("north"), 12: signing("south", entries=[5, 5, 3, 3, 6]), 13: signing("west")}
    engine = keyed(FakeGrid(nodes))
    rolls = [set(engine.call_roll(NAMES, 5)) for _ in range(4)]
    assert rolls == [set(NAMES), {"north", "west"}, {"north", "west"}, set(NAMES)]
    assert caplog.text.count("its ledger was put back") == 1, "said once, not at every look"


def test_nobody_waits_for_a_silo_whose_ledger_was_put_back_with_a_former_key(clock: Clock) -> None:
    nodes = {11: signing("north"), 12: signing("south"), 13: signing("west")}
    engine = keyed(FakeGrid(nodes))
    former = state_head(KEYS["north"], "south", Head(9, "b" * 64), time.time_ns())
    engine.heads.highest["south"] = SentHead(**former.model_dump(), key=key_line(PUBLIC["north"]))
    RollCall(engine, 1).wait_for_all(NAMES, 60)
    assert set(engine.put_back) == {"south"}
    assert clock.now < 30


def test_an_answer_that_somebody_else_signed_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    def turncoat(message: Message) -> RecordDict | Error | None:
        return signing("south", 1, key=None if message.metadata.message_type == "query" else "west")(message)

    nodes = {11: signing("north", 1), 12: turncoat, 13: signing("west", 1)}
    answers = told(play(keyed(FakeGrid(nodes))))
    assert answers == {"north": "update", "south": FORGED, "west": "update"}
    assert FORGED in caplog.text


def test_an_answer_of_an_earlier_round_is_not_taken_again() -> None:
    kept: dict[str, RecordDict] = {}

    def replaying(message: Message) -> RecordDict | Error | None:
        kind = message.metadata.message_type
        if kind not in kept:
            found = signing("south", 1)(message)
            assert isinstance(found, RecordDict)
            kept[kind] = found
        return kept[kind]

    engine = keyed(FakeGrid({11: signing("north"), 12: replaying, 13: signing("west")}))
    assert told(play(engine))["south"] == "update"
    assert told(play(engine))["south"] == FORGED, "not even of the same round, asked again"
    assert told(play(engine, round=1))["south"] == FORGED


def test_a_silo_whose_key_is_revoked_in_a_run_is_not_heard_any_more() -> None:
    nodes = {number: signing(name, 1) for number, name in enumerate(NAMES, start=11)}
    engine = keyed(FakeGrid(nodes))
    live = dict(PUBLIC)
    engine.keys = live
    play(engine)
    del live["west"]
    assert told(play(engine, round=1))["west"] == FORGED
