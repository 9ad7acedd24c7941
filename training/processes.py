"""One run on several processes, started by torchrun: which one this is, and what all agree on.

Each process reads its shard of every batch and of the validation split; DistributedDataParallel
averages gradients, so that all hold the same weights. Without torchrun there is one process, and
every method here returns what it was given.
"""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError
from training.config import TrainConfig
from training.runtime import StopSignal, torchrun_ranks

LOST = re.compile("gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out", re.I)
TIMEOUT = timedelta(minutes=10)  # of waiting for another process, which may be gone


@dataclass(frozen=True)
class Processes:
    """The processes of a run."""

    rank: int = 0
    """Of this one."""

    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def __str__(self) -> str:
        return f", one of {self.world_size} processes" if self.world_size > 1 else ""

    def shard(self, batch: Tensor) -> Tensor:
        """The rows of a batch that this process learns from."""
        return batch.chunk(self.world_size)[self.rank]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the processes, the same in all of them."""
        if self.world_size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=collective_device())
        dist.all_reduce(total)
        return total.tolist()

    def all_reduce_max(self, number: int) -> int:
        """The largest that any process has."""
        if self.world_size == 1:
            return number
        largest = torch.tensor(number, device=collective_device())
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def stop_requested(self, stop: StopSignal) -> bool:
        """Whether any process was told to stop; all answer alike. A signal that comes meanwhile is
        kept for the next time."""
        number = self.all_reduce_max(stop.number)
        stop.number = number or stop.number
        return number != 0

    def gather(self, state: Tensor) -> list[Tensor]:
        """This tensor from every process, in order of rank."""
        if self.world_size == 1:
            return [state]
        own = state.to(collective_device())
        states = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(states, own)
        return [other.cpu() for other in states]

    def wrap_ddp(self, model: nn.Module) -> nn.Module:
        """The model, whose backward pass leaves the mean gradient of all processes."""
        return model if self.world_size == 1 else DistributedDataParallel(model)


ALONE = Processes()


def no_sync(model: nn.Module, wanted: bool) -> AbstractContextManager[None]:
    """Inside, if wanted, gradients are not averaged over the processes."""
    if wanted and isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def exit_now(code: int) -> int:
    """Exit with this code where other processes may be gone, without taking down the group: a sum
    that nobody will finish can block that forever. A process that is alone just returns the code.
    """
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def collective_device() -> str:
    """The device whose tensors the processes exchange."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def join_processes(config: TrainConfig, device: torch.device, held: ExitStack) -> Processes:
    """Meet the other processes that torchrun started, if it did, until `held` is left.

    All but the first print nothing from here on.

    Raises:
        UserError: for a batch that cannot be split evenly, and when the others cannot be reached.
    """
    rank, _, size = torchrun_ranks()
    if size == 1:
        return ALONE
    if config.batch_size % (size * config.gradient_accumulation_steps):
        raise UserError(
            f"--train.batch_size {config.batch_size} must be divisible by {size} processes times "
            f"--train.gradient_accumulation_steps {config.gradient_accumulation_steps}"
        )
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    except (ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"could not reach the other {size - 1} processes: {first}") from error
    held.push(tear_down)
    if rank:
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - until `held` is left
        held.enter_context(redirect_stdout(held.enter_context(nowhere)))
    return Processes(rank, size)


def tear_down(kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
    """Take the group down, or after an error leave that to the end of the process: what averages
    gradients is then still held by the error's traceback, and destroying the group as its last
    holder can hang forever (seen with PyTorch 2.13 and gloo)."""
    if kind is None:
        dist.destroy_process_group()
    elif isinstance(error, RuntimeError) and LOST.search(str(error)):
        line = "another process of this job is gone; resume the run from its last checkpoint"
        print(f"error: {line}", file=sys.stderr)
        exit_now(2)
