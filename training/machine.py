"""What a run computes on: device, precision, threads, processes, and the signals that stop it.

torchrun starts a run on several processes. Each reads its shard of every batch and of the
validation split. DistributedDataParallel averages gradients, so that all processes have the same
weights. Without torchrun there is one process, and nothing is averaged.
"""

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist
from pydantic.dataclasses import dataclass
from torch.backends.cpu import get_cpu_capability

from common.errors import UserError, printable
from configs.config import STRICT, Count, TrainConfig

TIMEOUT = timedelta(minutes=10)  # for other processes, which may have ended
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


class Processes(NamedTuple):
    """The processes of a run, and the place of this one among them."""

    rank: int = 0
    """Number of this process, from 0 to world_size - 1."""

    local_rank: int = 0
    """Its number among the processes on this machine, which is the number of its GPU."""

    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def mean(self, *numbers: float) -> list[float]:
        """Return each number averaged over the processes, the same in all of them."""
        total = self.reduce(numbers, dist.ReduceOp.SUM)
        return [number / self.world_size for number in total]

    def max(self, number: int) -> int:
        """Return the largest of a number over the processes, the same in all of them."""
        return int(self.reduce((number,), dist.ReduceOp.MAX)[0])

    def reduce(self, numbers: tuple[float, ...], operation: dist.ReduceOp.RedOpType) -> list[float]:
        """Combine each number over the processes."""
        if self.world_size == 1:
            return list(numbers)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total, operation)
        return total.tolist()


def read_processes() -> Processes:
    """Read the variables that torchrun sets for each process.

    Raises:
        UserError: if only some of them are set.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    values = [os.environ.get(name, "") for name in names]
    if not any(values[:3]):
        return Processes()
    if not all(values):
        raise UserError(f"set all of {', '.join(names)}, or none; torchrun sets them")
    return Processes(*map(int, values[:3]))


@contextmanager
def join_processes(processes: Processes, config: TrainConfig, device: str) -> Iterator[None]:
    """Join the other processes, if there are any, inside the `with` block; then only the first one
    prints.

    Raises:
        UserError: for a batch that cannot be split evenly.
    """
    size = processes.world_size
    if size == 1:
        yield
        return
    if config.batch_size % (size * config.gradient_accumulation_steps):
        raise UserError(
            f"--train.batch_size {config.batch_size} must be divisible by {size} processes times "
            f"--train.gradient_accumulation_steps {config.gradient_accumulation_steps}"
        )
    try:
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=TIMEOUT)
        if not processes.is_main:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the end
        yield
    # Exit at once: a sum that waits for a process that has ended can block Python's exit forever.
    except KeyboardInterrupt:
        os._exit(130)
    except RuntimeError as error:  # as a rule, another process has ended
        reason = printable(str(error).partition("\n")[0])
        print(f"error: {reason}; resume the run from its last checkpoint", file=sys.stderr)
        os._exit(2)
    # Not after an error: its traceback refers to the wrapped model, and destroying the group before
    # that model can hang forever (seen with PyTorch 2.13 and gloo).
    dist.destroy_process_group()


def prepare_machine(
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
    if device == "cuda":
        make_repeatable()
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
        UserError: if it does not exist, or has too few GPUs for the processes of this machine.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    present = ["cuda"] * cuda + ["mps"] * mps + ["cpu"]
    name = present[0] if name == "auto" else name
    if name not in present:
        raise UserError(f"there is no {name} device; available: {', '.join(present)}")
    if name == "cuda":
        if local_rank >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise UserError(f"this machine has fewer GPUs than processes: {count}")
        torch.cuda.set_device(local_rank)
        # cuDNN's attention varies, and its preparation for each length takes 10 ms, which decoding
        # repeats at every token.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return name


def make_repeatable() -> None:
    """Choose kernels of CUDA that give the same result every time.

    By default, the gradients of an embedding of 3,073 tokens or more vary, and so do those of
    attention with a context of 512 or more (seen on an H200 with PyTorch 2.11). Even so, a few of
    the runs with 16,384 tokens in a batch differed in the last digits.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads this when it starts
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def computes_in_bfloat16(device: str) -> bool:
    """Return whether the device has hardware for bfloat16 matmuls."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if device == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class StopSignal:
    """A request to stop: Ctrl-C, SIGTERM or a closed terminal inside the `with` block.

    The loop reads `number` with the loss, and an evaluation after each batch. A second signal
    raises KeyboardInterrupt at once.
    """

    number = 0
    """The signal; 0 before the first."""

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
