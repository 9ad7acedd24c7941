"""One run on several processes, which torchrun starts.

Each process reads its shard of every batch and of the validation split. DistributedDataParallel
averages gradients, so that all processes have the same weights. Without torchrun there is one
process, and nothing is averaged.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError
from training.config import TrainConfig

TIMEOUT = timedelta(minutes=10)  # for other processes, which may have ended


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
        if self.world_size == 1:
            return list(numbers)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return (total / self.world_size).tolist()

    def wrap_ddp(self, model: nn.Module) -> nn.Module:
        """Wrap the model so that its backward pass averages gradients over all processes."""
        if self.world_size > 1:
            model = DistributedDataParallel(model)
            model.broadcast_buffers = False  # they are constant; the argument is deprecated
        return model


def read_processes() -> Processes:
    """Read the variables that torchrun sets for each process.

    Raises:
        UserError: if only some of them are set, or their values do not fit together.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    values = [os.environ.get(name, "") for name in names]
    if not any(values):
        return Processes()
    rank, local_rank, world_size = (int(v) if v.isdecimal() else -1 for v in values)
    if not (
        0 <= local_rank <= rank < world_size and {"MASTER_ADDR", "MASTER_PORT"} <= {*os.environ}
    ):
        found = ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))
        raise UserError(f"{found} in the environment; start with torchrun, or unset all of them")
    return Processes(rank, local_rank, world_size)


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
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        line = "another process is gone; resume the run from its last checkpoint"
        print(f"error: {line}", file=sys.stderr)
        os._exit(2)
    # Not after an error: its traceback refers to the wrapped model, and destroying the group before
    # that model can hang forever (seen with PyTorch 2.13 and gloo).
    dist.destroy_process_group()
