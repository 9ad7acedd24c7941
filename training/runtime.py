"""The machine: device, precision, threads, and the signals that ask a run to stop."""

import dataclasses
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from common.errors import UserError
from common.fields import STRICT, Count
from model.gpt import GPT
from training.config import TrainConfig

# One thread is 0.5 to 0.9 times as fast as two where both cores are free, and 1.7 to 2 times where
# another program keeps one of them busy.
CLEARLY_FASTER = 1.3


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


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What a run computes on, and in which type."""

    device: torch.device
    precision: torch.dtype
    threads: int

    def prepare(self, model: GPT, compiled: bool = False) -> nn.Module:
        """The model, from here on computing in `precision`, and compiled if asked.

        Its weights stay float32, and so do its embeddings, whose gradients are long sums over
        tokens.
        """
        model.compute_dtype = self.precision
        module: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
        return module

    def machine(self, processes: int) -> Machine:
        """What a checkpoint keeps of all this."""
        return Machine(
            device=self.device.type,
            processor=self.processor,
            threads=self.threads,
            processes=processes,
            precision=self.precision_name,
            torch=torch.__version__,
        )

    @property
    def processor(self) -> str:
        """Which GPU, or the widest instructions that PyTorch finds in the CPU."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name()
        if self.device.type == "cpu":
            return torch.backends.cpu.get_cpu_capability()
        return self.device.type

    @property
    def precision_name(self) -> str:
        """float32 or bfloat16."""
        return str(self.precision).removeprefix("torch.")

    def __str__(self) -> str:
        name = self.device.type
        if name == "cuda":
            name += f" ({self.processor})"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"device {name}, {threads}, computing in {self.precision_name}"


def start_runtime(config: TrainConfig, threads_before: int = 0) -> Runtime:
    """Choose what the config leaves open, and set the number of threads.

    Args:
        threads_before: of the run that is resumed; taken where the config names no number and this
            machine has cores for them.

    Raises:
        UserError: for a device that is not there, or far more threads than cores.
    """
    most = 4 * (os.cpu_count() or 1)
    if config.threads > most:
        raise UserError(
            f"--train.threads {config.threads} is too many for the {os.cpu_count()} cores here"
        )
    device = pick_device(config.device)
    threads = config.threads or (threads_before if threads_before <= most else 0)
    if threads:
        torch.set_num_threads(threads)
    elif device.type == "cpu":
        fit_threads("--train.threads")
    if config.precision == "auto":
        precision = torch.bfloat16 if computes_in_bfloat16(device) else torch.float32
    else:
        precision = getattr(torch, config.precision)
    return Runtime(device, precision, torch.get_num_threads())


def fit_threads(flag: str = "") -> None:
    """Use fewer threads where that is faster: when other programs keep cores busy, all threads wait
    for the one that shares its core. Prints a note that says how to use all.

    Where cores are free all are used, so that a run repeats. In a job of several processes, and
    where OMP_NUM_THREADS is set, the number stays as it is.

    Args:
        flag: the command's flag for the number of threads, which the note names; without one it
            names OMP_NUM_THREADS.
    """
    cores = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or torchrun_ranks()[2] > 1:
        return
    threads = cores
    while threads > 1 and times_as_fast(threads // 2, threads) > CLEARLY_FASTER:
        threads //= 2
    torch.set_num_threads(threads)
    if threads < cores:
        others = f"{flag} {cores}" if flag else f"OMP_NUM_THREADS={cores} in the environment"
        print(
            f"note: using {threads} of {cores} threads, which is faster while other programs keep "
            f"this machine busy; {others} uses all",
            file=sys.stderr,
        )


def times_as_fast(few: int, many: int) -> float:
    """How many times as fast work like that of a training step is on few threads as on many;
    measured alternately, because other programs come and go, in about a tenth of a second."""
    x, up, down = torch.ones(512 * many, 128), torch.ones(128, 512), torch.ones(512, 128)
    seconds = {few: 0.0, many: 0.0}
    for turn in range(3):
        for threads in (many, few):
            torch.set_num_threads(threads)
            began = time.perf_counter()
            for _ in range(8 if turn else 1):
                (x @ up).relu_() @ down
            if turn:  # the first is slower: threads are started
                seconds[threads] += time.perf_counter() - began
    return seconds[many] / seconds[few]


def torchrun_ranks() -> tuple[int, int, int]:
    """Rank, rank on this machine, and number of processes, as torchrun set them.

    Raises:
        UserError: for values that torchrun does not set.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    words = [os.environ.get(name, default) for name, default in zip(names, "001", strict=True)]
    try:
        rank, local_rank, size = map(int, words)
        if not 0 <= local_rank <= rank < size:
            raise ValueError
    except ValueError:
        given = ", ".join(f"{name}={word}" for name, word in zip(names, words, strict=True))
        raise UserError(f"{given} in the environment are not what torchrun sets") from None
    return rank, local_rank, size


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU if there is one.

    Raises:
        UserError: for a device that is not there.
    """
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(device for device in present if present[device])
    if not present[name]:
        here = ", ".join(device for device in present if present[device])
        raise UserError(f"there is no {name} device here; PyTorch {torch.__version__} sees: {here}")
    if name == "cuda" and "LOCAL_RANK" in os.environ:  # one of several processes: a GPU for each
        (_, local_rank, _), count = torchrun_ranks(), torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(
                f"there is no GPU for process {local_rank + 1} of this machine, which has {count}; "
                f"start it with --nproc_per_node={count}, or all on the CPU with --train.device cpu"
            )
        torch.cuda.set_device(local_rank)
    return torch.device(name)


def computes_in_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware, and so faster than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False


class StopSignal:
    """Inside the `with` block Ctrl-C, SIGTERM and a closed terminal are noted instead of obeyed.

    The first one lets the step finish; after it all act as usual, so a second one stops at once:
    Ctrl-C by a KeyboardInterrupt, whatever it did before the block.
    """

    SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is unknown to Windows

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """What a shell reports of a program that ended by this signal: 130 for Ctrl-C."""
        return 128 + self.number

    def __enter__(self) -> "StopSignal":
        known = [getattr(signal, name) for name in self.SIGNALS if hasattr(signal, name)]
        heard = [number for number in known if signal.getsignal(number) != signal.SIG_IGN]
        self.before = {number: signal.signal(number, self.note) for number in heard}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.restore()
        with suppress(OSError):  # the terminal may be what is gone
            # Not print: the signal may have come in the middle of one.
            os.write(2, b"\nstopping after this step; repeat to stop at once\n")

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.number and self.before.get(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *error: object) -> None:
        self.restore()
