import torch
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.clipping.lent_memory import VECTOR_BYTES
from wholegrain.clipping.workspace import Lease, Workspace

F32, F64 = torch.zeros(0), torch.zeros(0, dtype=torch.float64)
shapes = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


@given(st.lists(st.tuples(st.sampled_from("ab"), shapes, st.sampled_from((F32, F64))), max_size=8))
def test_what_is_taken_is_what_was_asked_for(takings: list) -> None:
    workspace = Workspace()
    for key, shape, like in takings:
        taken = workspace.take(key, shape, like)
        assert tuple(taken.shape) == shape
        assert taken.dtype is like.dtype
        assert taken.is_contiguous()


def test_memory_is_used_again_for_less_and_replaced_for_more() -> None:
    workspace = Workspace()
    place = workspace.take("a", (4, 2), F32).data_ptr()
    assert workspace.take("a", (3, 2), F32).data_ptr() == place
    assert workspace.take("a", (4, 2), F32).data_ptr() == place
    larger = workspace.take("a", (5, 2), F32)
    assert larger.data_ptr() != place
    assert workspace.take("a", (2,), F32).data_ptr() == larger.data_ptr()


def test_keys_have_memory_of_their_own() -> None:
    workspace = Workspace()
    one, other = workspace.take("a", (3,), F32), workspace.take("b", (3,), F32)
    one.fill_(1)
    other.fill_(2)
    assert one.tolist() == [1, 1, 1]


def test_what_was_never_filled_stays_zero_while_batches_grow_and_shrink() -> None:
    workspace = Workspace()
    for items in (2, 5, 1, 5, 7, 3):
        padded = workspace.take("a", (items, 4), F32, zero=True)
        padded[:, 1:3] = 9
        assert not padded[:, 0].any()
        assert not padded[:, 3].any()


def test_a_leased_vector_is_used_again_once_nobody_holds_it() -> None:
    lease = Lease()
    first = lease.take(1000, torch.float64)
    place = first.data_ptr()
    del first
    assert lease.take(1000, torch.float64).data_ptr() == place


def test_a_leased_vector_is_left_alone_while_anything_of_it_is_held() -> None:
    for hold in (lambda v: v, lambda v: v[10:20], lambda v: v.numpy(), lambda v: v.detach(), lambda v: v.view(10, 100)):
        lease = Lease()
        held = hold(lease.take(1000, torch.float32).fill_(1.0))
        lease.take(1000, torch.float32).fill_(2.0)
        assert (held == 1.0).all()


def test_a_leased_vector_is_an_ordinary_one_that_begins_where_vectors_do() -> None:
    with torch.inference_mode():
        vector = Lease().take(7, torch.float64)
    assert not vector.is_inference()
    assert vector.dtype is torch.float64
    assert vector.shape == (7,)
    assert vector.data_ptr() % VECTOR_BYTES == 0


def test_what_is_lent_is_nobody_elses() -> None:
    workspace = Workspace()
    one, other = workspace.lend((4, 2), F32), workspace.lend((4, 2), F32)
    one.fill_(1)
    other.fill_(2)
    kept = one[1:].t()  # a view counts as well
    del one
    workspace.lend((4, 2), F32).fill_(3)
    assert (kept == 1).all()
    assert (other == 2).all()


def test_what_is_lent_has_the_shape_and_kind_that_was_asked_for_and_is_an_ordinary_tensor() -> None:
    workspace = Workspace()
    for shape, like in (((4, 2), F32), ((3,), F64), ((0, 5), F32), ((1, 1, 1), F64)):
        with torch.inference_mode():
            lent = workspace.lend(shape, like)
        assert (tuple(lent.shape), lent.dtype, lent.is_contiguous()) == (shape, like.dtype, True)
        assert not lent.is_inference()


def test_what_is_cleared_is_forgotten_and_what_is_still_held_stays() -> None:
    workspace = Workspace()
    held = workspace.take("a", (4, 2), F32).fill_(1)
    lent = workspace.lend((64,), F64).fill_(2)
    assert workspace.clear() == 4 * 2 * 4 + 64 * 8
    assert workspace.clear() == 0
    workspace.take("a", (4, 2), F32).fill_(3)
    workspace.lend((64,), F64).fill_(4)
    assert (held == 1).all()
    assert (lent == 2).all()
