"""The machine: device, precision, threads, and the signals that stop a run."""

import dataclasses
import os
import signal
from contextlib import suppress
from types import FrameType

import torch
from pydantic.dataclasses import dataclass
from torch.backends.cpu import get_cpu_capability

from common.errors import UserError
from common.fields import STRICT, Count
from training.config import TrainConfig

# Ctrl-C, a request to terminate, and a closed terminal, which Windows does not signal.
SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


@dataclass(frozen=True, config=STRICT)
class Machine:
    """The properties that rounding depends on. If they change, a resumed run prints a note."""

    device: str
    """cpu, cuda or mps."""

    processor: str
    """The GPU's name, or the instruction set of the CPU."""

    threads: Count
    """Number of CPU threads."""

    processes: Count
    """Number of processes that average their gradients."""

    precision: str
    """float32 or bfloat16."""

    torch: str
    """The version of PyTorch."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(self).items())


def start_machine(config: TrainConfig, threads_before: int = 0) -> Machine:
    """Resolve the `auto` values of the config, and set the number of threads.

    Args:
        threads_before: number of threads of the resumed run; used if the config does not set it and
            this machine has that many cores.

    Raises:
        UserError: if the device does not exist.
    """
    device = pick_device(config.device)
    if config.threads or 0 < threads_before <= (os.cpu_count() or 1):
        torch.set_num_threads(config.threads or threads_before)
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if computes_in_bfloat16(device) else "float32"
    return Machine(
        device=device,
        processor=torch.cuda.get_device_name() if device == "cuda" else get_cpu_capability(),
        threads=torch.get_num_threads(),
        processes=int(os.environ.get("WORLD_SIZE", 1)),
        precision=precision,
        torch=torch.__version__,
    )


def pick_device(name: str) -> str:
    """Return the device of that name; `auto` is a GPU if there is one.

    Raises:
        UserError: if it does not exist.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    present = ["cuda"] * cuda + ["mps"] * mps + ["cpu"]
    name = present[0] if name == "auto" else name
    if name not in present:
        raise UserError(f"there is no {name} device; available: {', '.join(present)}")
    if name == "cuda":  # torchrun numbers the processes of a machine: a GPU for each
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return name


def computes_in_bfloat16(device: str) -> bool:
    """Return whether the device has hardware for bfloat16 matmuls."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if device == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class StopSignal:
    """Records Ctrl-C, SIGTERM and a closed terminal inside the `with` block.

    After the first signal, training stops when it next reads the loss, on a CPU in the same step. A
    second one raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> "StopSignal":
        self.before = {
            number: signal.signal(number, self.handle)
            for number in SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each in self.before:
            signal.signal(each, signal.default_int_handler)
        with suppress(OSError):  # the terminal may have been closed
            # Not print: the signal may have come in the middle of one.
            os.write(2, b"\nstopping soon; repeat to stop at the last checkpoint\n")

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
