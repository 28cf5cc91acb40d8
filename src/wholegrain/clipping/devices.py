"""Where a silo's gradients are computed, and in which precision; what has to be set there; and how values come back.

The clip theorem needs one thing of a device: a pass over the same values, of the same shapes, at the same parameters
gives the same bits again. With torch's deterministic algorithms that is documented of the CPU and of CUDA: an operation
that has none raises an error. Of MPS it is known not to hold: operations there differ from call to call without an
error (pytorch issues 97574 and 195404). docs/arithmetic.md says what is proved from it.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from wholegrain.errors import SpecError

HOST = torch.device("cpu")
DEVICES = ("cpu", "cuda", "mps")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WITHOUT_DOUBLE = ("mps",)
"""Devices that have no double precision: parameters, sums and noise stay on the host."""
UNSTEADY = {
    "mps": "gradients are computed on mps, whose operations are known to differ from call to call, so that one person"
    " may change what is computed of others"
}
"""Devices of which nothing is proved, and why."""
STEADY = {
    "cuda": "on cuda each person's gradients are computed apart from others', by operations that are documented, and"
    " were tried before the first step, to give the same bits in every call; that no value makes the device itself fail"
    " is assumed"
}
"""What is assumed of a device where something is proved."""
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""What cuBLAS reads when it starts: with this setting, its documentation says, results are the same in every call."""
SCALES = {torch.float16: 2.0**10}
"""What losses are multiplied by, so that small gradients do not underflow on their way; a public constant."""


def to_host(values: Tensor) -> Tensor:
    """Values where Python and numpy can read them. Nothing else in a step waits for a device."""
    return values.cpu()


@dataclass(frozen=True)
class Compute:
    """A device, and the precision of products in forward and backward passes; parameters are in single precision.

    Sums of clipped gradients, and all that is needed for them, are in double precision on every device. `compiled`:
    seeded noise, and batches of simulations, in C.
    """

    device: torch.device = HOST
    precision: torch.dtype = torch.float32
    compiled: bool = False

    @staticmethod
    def of(device: str, precision: str = "float32", compiled: bool = False) -> "Compute":
        """What a spec asks for, if this machine has it.

        >>> str(Compute.of("cpu", "bfloat16"))
        'cpu, bfloat16'
        """
        kind = PRECISIONS[precision]
        _require_there(device)
        if compiled and (device, precision) != ("cpu", "float32"):
            raise SpecError(
                "compute.compiled = true is for the CPU in float32: leave it out, or compute.device and"
                " compute.precision."
            )
        if kind is torch.float16 and device == "cpu":
            raise SpecError(
                "compute.precision = 'float16' is for a GPU, and compute.device is 'cpu': use 'bfloat16' or 'float32'."
            )
        if kind is torch.bfloat16 and not _has_bfloat16(device):
            raise SpecError(
                f"The device '{device}' of this machine has no bfloat16: set compute.precision to 'float16' or"
                " 'float32'."
            )
        if device != "cuda":
            return Compute(torch.device(device), kind, compiled)
        os.environ.setdefault(WORKSPACE, ":4096:8")
        # Processes that torchrun starts on one machine have a GPU each, as far as there are enough.
        number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return Compute(torch.device("cuda", number), kind)

    @property
    def place(self) -> torch.device:
        """Where parameters, sums and noise are."""
        return HOST if self.device.type in WITHOUT_DOUBLE else self.device

    @property
    def needs_passes(self) -> bool:
        """Whether this is not single precision on the CPU, for which there are faster engines."""
        return (self.device, self.precision) != (HOST, torch.float32)

    @property
    def scale(self) -> float:
        """What losses are multiplied by before they are differentiated."""
        return SCALES.get(self.precision, 1.0)

    def __str__(self) -> str:
        model = f" ({torch.cuda.get_device_name(self.device)})" if self.device.type == "cuda" else ""
        compiled = ", noise compiled" if self.compiled else ""
        return f"{self.device}{model}, {str(self.precision).removeprefix('torch.')}{compiled}"

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Only what gives the same bits in every call, and single precision that is what it says; then as before."""
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        with ExitStack() as stack:
            stack.callback(lambda: torch.use_deterministic_algorithms(before[0], warn_only=before[1]))
            torch.use_deterministic_algorithms(True)
            for part, values in self._flags:
                stack.enter_context(_flags(part, **values))
            if torch.amp.is_autocast_available(self.device.type):  # what the calling program has set is not asked for
                stack.enter_context(torch.autocast(self.device.type, enabled=False))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # other backward passes add up with atomics
            stack.enter_context(warnings.catch_warnings())
            # cuDNN copies them, which takes memory and changes nothing.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk of memory")
            yield

    @property
    def _flags(self) -> list[tuple[Any, dict[str, bool]]]:
        """What is to be set in which of torch's libraries."""
        if self.device.type == "cuda":
            return CUDA_FLAGS
        # oneDNN in half precision ends the process on virtual machines that only claim to have AMX.
        return [(torch.backends.mkldnn, {"enabled": False})] if self.device == HOST and self.needs_passes else []

    @contextmanager
    def narrow(self) -> Iterator[None]:
        """Products in the precision that was asked for, by torch's autocast."""
        if self.precision is torch.float32:
            yield
            return
        # Without its cache, which would keep copies of parameters from one pass for the next.
        with torch.autocast(self.device.type, self.precision, cache_enabled=False):
            yield


USUAL = Compute()


CUDA_FLAGS: list[tuple[Any, dict[str, bool]]] = [
    (
        torch.backends.cuda.matmul,
        {
            "allow_tf32": False,
            "allow_fp16_reduced_precision_reduction": False,
            "allow_bf16_reduced_precision_reduction": False,
        },
    ),
    (torch.backends.cudnn, {"allow_tf32": False, "benchmark": False, "deterministic": True}),
]
"""Without TF32, without sums in half precision, and without algorithms that are chosen by a race."""


@contextmanager
def _flags(part: Any, **values: bool) -> Iterator[None]:
    """Attributes of a part of torch, until they are as before again."""
    before = {name: getattr(part, name) for name in values}
    try:
        for name, value in values.items():
            setattr(part, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(part, name, value)


def _require_there(device: str) -> None:
    there: dict[str, Callable[[], bool]] = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if device in there and not there[device]():
        raise SpecError(
            f"compute.device = '{device}', and torch {torch.__version__} finds no such device on this machine: install"
            " its driver and a torch that is built for it, or set compute.device to 'cpu'."
        )


def _has_bfloat16(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device != "mps" or bool(torch.backends.mps.is_macos_or_newer(14, 0))


def place_of(gradients: object) -> torch.device:
    """Where a gradient engine has its parameters and sums: `place`, if it has one."""
    # Not by `isinstance`: to ask a protocol takes as long as a small silo's step.
    place: torch.device = getattr(gradients, "place", HOST)
    return place
