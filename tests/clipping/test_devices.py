"""What a spec may ask for, what is set on a device, and what stays as it was. The devices themselves are pretended."""

import os

import pytest
import torch

from wholegrain.clipping.devices import HOST, UNSTEADY, USUAL, WORKSPACE, Compute, _flags, place_of
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.errors import SpecError


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(SpecError, match=f"compute.device = '{device}', and torch .* finds no such device"):
        Compute.of(device)


def test_float16_is_for_gpus() -> None:
    with pytest.raises(SpecError, match="'float16' is for a GPU"):
        Compute.of("cpu", "float16")


@pytest.mark.usefixtures("four_gpus")
def test_bfloat16_is_refused_where_it_is_only_imitated() -> None:
    with pytest.raises(SpecError, match="has no bfloat16"):
        Compute.of("cuda", "bfloat16")
    assert Compute.of("cuda", "float16").precision is torch.float16


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("rank", "number"), [(None, 0), ("0", 0), ("3", 3), ("5", 1)])
def test_processes_on_one_machine_take_gpus_in_turn(
    rank: str | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    found = Compute.of("cuda")
    assert found.device == torch.device("cuda", number)
    assert str(found) == f"cuda:{number} (a card), float32"


@pytest.mark.usefixtures("four_gpus")
def test_cublas_is_told_to_repeat_itself_unless_it_was_told_something(monkeypatch: pytest.MonkeyPatch) -> None:
    Compute.of("cuda")
    assert os.environ[WORKSPACE] == ":4096:8"
    monkeypatch.setenv(WORKSPACE, ":16:8")
    Compute.of("cuda")
    assert os.environ[WORKSPACE] == ":16:8"


def test_sums_stay_on_the_host_where_a_device_has_no_double_precision() -> None:
    assert Compute(torch.device("mps")).place == HOST
    assert Compute(torch.device("cuda", 1)).place == torch.device("cuda", 1)
    assert set(UNSTEADY) == {"mps"}


def test_an_engine_says_where_it_sums() -> None:
    model = torch.nn.Linear(1, 1)
    assert place_of(BookKeeping(model, torch.nn.functional.mse_loss)) == HOST
    away = UnitPasses(model, torch.nn.functional.mse_loss, Compute(torch.device("meta")))
    assert place_of(away) == torch.device("meta")


@pytest.mark.parametrize("before", [False, True])
def test_settings_are_on_inside_and_as_before_outside(before: bool) -> None:
    def fail() -> None:
        with USUAL.settings():
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            raise ZeroDivisionError

    torch.use_deterministic_algorithms(before, warn_only=before)
    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert torch.are_deterministic_algorithms_enabled() is before
        assert torch.is_deterministic_algorithms_warn_only_enabled() is before
    finally:
        torch.use_deterministic_algorithms(False)


def test_cuda_computes_single_precision_as_such_and_chooses_no_algorithm_by_a_race() -> None:
    """Flags of torch, which a build without CUDA has as well."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    with _flags(products, allow_tf32=True), _flags(convolutions, benchmark=True):
        with Compute(torch.device("cuda", 0)).settings():
            assert not products.allow_tf32
            assert not products.allow_fp16_reduced_precision_reduction
            assert not products.allow_bf16_reduced_precision_reduction
            assert not convolutions.allow_tf32
            assert not convolutions.benchmark
            assert convolutions.deterministic
            assert not torch.backends.cuda.flash_sdp_enabled()
            assert not torch.backends.cuda.mem_efficient_sdp_enabled()
        assert products.allow_tf32
        assert convolutions.benchmark
        assert not convolutions.deterministic


def test_half_precision_on_the_cpu_does_without_onednn() -> None:
    """Its kernels end the process on machines that only claim to have AMX."""
    assert torch.backends.mkldnn.enabled
    with Compute(HOST, torch.bfloat16).settings():
        assert not torch.backends.mkldnn.enabled
    with USUAL.settings():
        assert torch.backends.mkldnn.enabled


def test_half_precision_reaches_products_and_nothing_is_kept_of_them() -> None:
    layer, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    with Compute(HOST, torch.bfloat16).narrow():
        assert layer(x).dtype is torch.bfloat16
        assert not torch.is_autocast_cache_enabled()
    with USUAL.narrow():
        assert layer(x).dtype is torch.float32
