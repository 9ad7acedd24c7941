"""One run on several processes, started by torchrun: who this one is, and what all know together.

Each process reads its share of every batch and of the validation split; gradients are averaged by
DistributedDataParallel, so that all hold the same weights. Without torchrun there is one process,
and every function here returns what it was given.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError
from training.config import TrainConfig

LOST = re.compile("gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out", re.I)


class Forward(nn.Module):
    """A function of tokens beside the weights that it uses, as DistributedDataParallel asks."""

    def __init__(
        self, weights: Iterable[nn.Parameter], function: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)
        self.function = functools.partial(function)  # a model must not be a part of this

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.function(tokens_BT)


@dataclass(frozen=True)
class Processes:
    """The processes of a run."""

    rank: int = 0
    """Of this one; the first writes what is written."""

    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this is the one that writes files and speaks."""
        return self.rank == 0

    def __str__(self) -> str:
        return f", one of {self.size} processes" if self.size > 1 else ""

    def leave(self, code: int) -> int:
        """End with an exit code where others may be gone: at once, because sums that nobody will
        finish now can hold up for ever the taking down of what waits for them. One process alone
        goes on, with that code."""
        if self.size > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def share(self, windows: Tensor) -> Tensor:
        """The rows of a batch that this process learns from."""
        return windows.chunk(self.size)[self.rank]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the processes, the same in all of them."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=meeting_place())
        dist.all_reduce(total)
        return total.tolist()

    def most(self, number: int) -> int:
        """The largest that any process has."""
        if self.size == 1:
            return number
        largest = torch.tensor(number, device=meeting_place())
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def average_gradients(
        self, model: nn.Module, forward: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], Tensor]:
        """`forward`, whose backward pass leaves the mean gradient of all processes."""
        if self.size == 1:
            return forward
        return DistributedDataParallel(Forward(model.parameters(), forward))

    def gather(self, state: Tensor) -> list[Tensor]:
        """The bytes of every process, in order of rank."""
        if self.size == 1:
            return [state]
        own = state.to(meeting_place())
        states = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(states, own)
        return [other.cpu() for other in states]


ALONE = Processes()


def meeting_place() -> str:
    """The device whose tensors the processes exchange."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def without_averaging(forward: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Inside, gradients of several processes stay apart: until the last piece of a batch."""
    if isinstance(forward, DistributedDataParallel):
        return forward.no_sync()
    return nullcontext()


def writes_here() -> bool:
    """Whether this process is the one that writes, as torchrun numbered them."""
    return os.environ.get("RANK", "0") == "0"


def join_processes(config: TrainConfig, device: torch.device, held: ExitStack) -> Processes:
    """Meet the other processes that torchrun started, if it did; until `held` is left.

    All but the first print nothing from here on.

    Raises:
        UserError: for a batch that cannot be shared out evenly.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Processes()
    if config.batch_size % (size * config.grad_accum_steps):
        raise UserError(
            f"--train.batch_size {config.batch_size} must be divisible by {size} processes times "
            f"--train.grad_accum_steps {config.grad_accum_steps}"
        )
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    held.push(part)
    if not writes_here():
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - until `held` is left
        held.enter_context(redirect_stdout(held.enter_context(nowhere)))
    return Processes(dist.get_rank(), size)


def part(kind: type[BaseException] | None, *_: object) -> None:
    """Take the group down, or after an error leave it to the end of the process: what averages
    gradients is then still held by the error's traceback, and to be the last that holds the group,
    and so to take it down, can hang for ever (seen with PyTorch 2.13 and gloo)."""
    if kind is None:
        dist.destroy_process_group()


def lost_a_process(error: Exception) -> bool:
    """Whether an error says that another process of this run is no longer there."""
    return dist.is_initialized() and LOST.search(str(error)) is not None
