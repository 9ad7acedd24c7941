"""Several processes share a batch; what concerns one process alone. Real jobs are in
tests/test_processes.py."""

import pytest
import torch.distributed as dist
from torch import Tensor

from training.processes import Processes


@pytest.mark.parametrize(("meanwhile", "other"), [(0, 0), (0, 15), (15, 0)])
def test_a_signal_anywhere_stops_all_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch, meanwhile: int, other: int
) -> None:
    """The first of two processes, where one comes to the other, or here while they sum."""
    processes = Processes(0, 2)

    def all_reduce(total: Tensor) -> None:
        total += total.new_tensor([2, other])
        processes.stop.number = meanwhile

    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    assert processes.sum(1) == [3]
    assert processes.stopping == bool(other)
    assert processes.stop.number == max(meanwhile, other)
