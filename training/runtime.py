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
from training.processes import Processes

# Ctrl-C, a request to terminate, and a closed terminal, which Windows does not signal.
SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


@dataclass(frozen=True, config=STRICT)
class Machine:
    """Properties of the machine that affect results. A resumed run prints a note of changes."""

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


def start_machine(
    config: TrainConfig, processes: Processes, before: Machine | None = None
) -> Machine:
    """Resolve the `auto` values of the config, and set the number of threads.

    Args:
        before: the machine of the resumed run; its number of threads is used if the config does not
            set one and this machine has that many cores.

    Raises:
        UserError: if the device does not exist.
    """
    device = pick_device(config.device, processes.local_rank)
    if config.threads:
        torch.set_num_threads(config.threads)
    elif before and before.threads <= (os.cpu_count() or 1):
        torch.set_num_threads(before.threads)
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if computes_in_bfloat16(device) else "float32"
    return Machine(
        device=device,
        processor=torch.cuda.get_device_name() if device == "cuda" else get_cpu_capability(),
        threads=torch.get_num_threads(),
        processes=processes.world_size,
        precision=precision,
        torch=torch.__version__,
    )


def pick_device(name: str, local_rank: int = 0) -> str:
    """Return the device of that name; `auto` is a GPU if there is one.

    Args:
        local_rank: number of the GPU to use, if the device is cuda.

    Raises:
        UserError: if it does not exist.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    present = ["cuda"] * cuda + ["mps"] * mps + ["cpu"]
    name = present[0] if name == "auto" else name
    if name not in present:
        raise UserError(f"there is no {name} device; available: {', '.join(present)}")
    if name == "cuda":
        torch.cuda.set_device(local_rank)
    return name


def computes_in_bfloat16(device: str) -> bool:
    """Return whether the device has hardware for bfloat16 matmuls."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if device == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class StopSignal:
    """A request to stop: Ctrl-C, SIGTERM or a closed terminal inside the `with` block, or a call of
    `request`.

    The loop reads `number` with the loss, and an evaluation after each batch. A second signal
    raises KeyboardInterrupt at once.
    """

    number = 0
    """The signal; 0 before the first."""

    def request(self, number: int) -> None:
        """Stop soon; the exit code of the command is that of the signal `number`."""
        self.number = self.number or number

    def __enter__(self) -> "StopSignal":
        self.before = {
            number: signal.signal(number, self.handle)
            for number in SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.request(number)
        for each in self.before:
            signal.signal(each, signal.default_int_handler)
        with suppress(OSError):  # the terminal may have been closed
            # Not print: the signal may have come in the middle of one.
            os.write(2, b"\nstopping soon; repeat to stop at the last checkpoint\n")

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
