"""One run on several processes, which torchrun starts.

Each process reads its shard of every batch and of the validation split. DistributedDataParallel
averages gradients, so that all processes have the same weights. Without torchrun there is one
process, and nothing is averaged or summed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError
from training.config import TrainConfig
from training.runtime import StopSignal

TIMEOUT = timedelta(minutes=10)  # for other processes, which may have ended


@dataclass
class Processes:
    """The processes of a run, and the signal to stop, which all of them heed at the same step."""

    rank: int = 0
    """Rank of this process."""

    world_size: int = 1

    stop: StopSignal = field(default_factory=StopSignal)

    stopping: bool = False
    """Whether any process had been told to stop at the last sum."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def all_reduce(self, *numbers: float) -> list[float]:
        """Return each number summed over the processes, the same in all of them, and update
        `stopping`. A signal that arrives during the call counts in the next call."""
        total = torch.tensor([*numbers, self.stop.number], dtype=torch.float64)
        if self.world_size > 1:
            total = total.to("cuda" if dist.get_backend() == "nccl" else "cpu")
            dist.all_reduce(total)
        *sums, signals = total.tolist()
        if signals:
            self.stopping, self.stop.number = True, self.stop.number or signal.SIGTERM
        return sums

    def wrap_ddp(self, model: nn.Module) -> nn.Module:
        """Wrap the model so that its backward pass averages gradients over all processes."""
        if self.world_size > 1:
            model = DistributedDataParallel(model)
            model.broadcast_buffers = False  # they are constant; the argument is deprecated
        return model


@contextmanager
def join_processes(config: TrainConfig, device: str) -> Iterator[Processes]:
    """Join the other processes if torchrun started this one; then only the first one prints.

    Raises:
        UserError: for a batch that cannot be split evenly.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield Processes()
        return
    if config.batch_size % (size * config.gradient_accumulation_steps):
        raise UserError(
            f"--train.batch_size {config.batch_size} must be divisible by {size} processes times "
            f"--train.gradient_accumulation_steps {config.gradient_accumulation_steps}"
        )
    try:
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=TIMEOUT)
        rank = dist.get_rank()
        if rank:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the end
        yield Processes(rank, size)
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
