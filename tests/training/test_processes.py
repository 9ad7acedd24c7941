"""Several processes share a batch; what concerns one process alone. Real jobs are in
tests/test_processes.py."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from training.config import TrainConfig
from training.processes import ALONE, Processes, join_processes
from training.runtime import StopSignal

CPU = torch.device("cpu")


@given(st.integers(1, 6), st.integers(1, 4))
def test_shards_are_the_batch(size: int, rows: int) -> None:
    batch = torch.arange(2 * size * rows).view(-1, 2)
    shards = [Processes(rank, size).shard(batch) for rank in range(size)]
    assert {len(shard) for shard in shards} == {rows} and torch.equal(torch.cat(shards), batch)


def test_a_process_alone_keeps_what_it_has() -> None:
    layer, stop = nn.Linear(2, 2), StopSignal()
    assert ALONE.is_main and ALONE.wrap_ddp(layer) is layer
    assert ALONE.sum(0.1, 2.0) == [0.1, 2.0]
    stop.number = 15
    assert ALONE.stop_requested(stop) and stop.number == 15
    with join_processes(TrainConfig(), CPU) as processes:
        assert processes is ALONE


def test_a_signal_anywhere_stops_all_and_none_is_lost() -> None:
    """The first of two processes, where one comes to the other, or here while they agree."""

    class Two(Processes):
        def gather(self, tensor: Tensor) -> list[Tensor]:
            stop.number = meanwhile
            return [tensor, torch.full_like(tensor, other)]

    for meanwhile, other in ((0, 0), (0, 15), (15, 0)):
        stop = StopSignal()
        assert Two(0, 2).stop_requested(stop) == bool(other)
        assert stop.number == max(meanwhile, other)
