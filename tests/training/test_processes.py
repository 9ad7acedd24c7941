"""The processes that torchrun describes in the environment."""

import os
from typing import Any

import pytest
import torch.distributed as dist

from common.errors import UserError
from training.config import TrainConfig
from training.processes import Processes, join_processes, read_processes

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
TORCHRUN |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_only_a_complete_environment_names_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With RANK alone, two commands could train the same run; with WORLD_SIZE alone, one waits."""
    message = "in the environment; start with torchrun, or unset"
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert read_processes() == Processes(3, 1, 4)
    for name in TORCHRUN:
        with monkeypatch.context() as patch, pytest.raises(UserError, match=message):
            patch.delenv(name)
            read_processes()
    for rank in ("4", "x"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(UserError, match=message):
            read_processes()


def test_ctrl_c_while_joining_exits_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    def interrupted(*settings: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(dist, "init_process_group", interrupted)
    with (
        pytest.raises(SystemExit, match="130"),
        join_processes(Processes(0, 0, 2), TrainConfig(), "cpu"),
    ):
        pass
