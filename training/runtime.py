"""The machine: device, precision, threads, and the signals that ask a run to stop."""

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

# Ctrl-C, a polite end, and a closed terminal, which is unknown to Windows.
SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


@dataclass(frozen=True, config=STRICT)
class Machine:
    """What rounding depends on; a checkpoint keeps it, to warn when it changes on resuming."""

    device: str
    """cpu, cuda or mps."""

    processor: str
    """Which GPU, or the instructions that the CPU has."""

    threads: Count
    """CPU threads."""

    processes: Count
    """Processes that average their gradients."""

    precision: str
    """float32 or bfloat16."""

    torch: str
    """The version of PyTorch."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(self).items())


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What a run computes on, and in which type."""

    device: torch.device
    precision: torch.dtype
    machine: Machine


def start_runtime(config: TrainConfig, threads_before: int = 0) -> Runtime:
    """Choose what the config leaves open, and set the number of threads.

    Args:
        threads_before: threads of the run that is resumed; used if the config names no number and
            this machine has as many cores.

    Raises:
        UserError: if the device is not there.
    """
    device = pick_device(config.device)
    if config.threads or 0 < threads_before <= (os.cpu_count() or 1):
        torch.set_num_threads(config.threads or threads_before)
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if computes_in_bfloat16(device) else "float32"
    machine = Machine(
        device=device.type,
        processor=torch.cuda.get_device_name() if device.type == "cuda" else get_cpu_capability(),
        threads=torch.get_num_threads(),
        processes=int(os.environ.get("WORLD_SIZE", 1)),
        precision=precision,
        torch=torch.__version__,
    )
    return Runtime(device, getattr(torch, precision), machine)


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one.

    Raises:
        UserError: if it is not there.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    present = ["cuda"] * cuda + ["mps"] * mps + ["cpu"]
    name = present[0] if name == "auto" else name
    if name not in present:
        raise UserError(f"there is no {name} device here, only: {', '.join(present)}")
    if name == "cuda":  # torchrun numbers the processes of a machine: a GPU for each
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device(name)


def computes_in_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 matrices in hardware, and so faster."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class StopSignal:
    """Inside the `with` block Ctrl-C, SIGTERM and a closed terminal are noted instead of obeyed.

    The first one lets the step finish; a second one stops at once, by a KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    def __enter__(self) -> "StopSignal":
        self.before = {
            number: signal.signal(number, self.note)
            for number in SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each in self.before:
            signal.signal(each, signal.default_int_handler)
        with suppress(OSError):  # the terminal may be what is gone
            # Not print: the signal may have come in the middle of one.
            os.write(2, b"\nstopping after this step; repeat to stop at the last checkpoint\n")

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
