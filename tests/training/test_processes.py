"""Signals in multi-process training, simulated in one process."""

import os
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from training.config import TrainConfig
from training.processes import Processes, join_processes


@pytest.mark.parametrize(("meanwhile", "other"), [(0, 15), (15, 0)])
def test_signal_to_any_process_stops_all_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch, meanwhile: int, other: int
) -> None:
    """The signal reaches the other of two processes, or this one during the all-reduce."""
    processes = Processes(0, 2)

    def all_reduce(total: Tensor) -> None:
        total += total.new_tensor([2, other])
        processes.stop.number = meanwhile

    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    assert processes.all_reduce(1) == [3]
    assert processes.stopping == bool(other)
    assert processes.stop.number == max(meanwhile, other)


def test_ctrl_c_while_joining_exits_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    def interrupted(*settings: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(dist, "init_process_group", interrupted)
    with pytest.raises(SystemExit, match="130"), join_processes(TrainConfig(), "cpu"):
        pass
