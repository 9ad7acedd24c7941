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


def test_environment_names_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    assert read_processes() == Processes(0, 0, 1)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert read_processes() == Processes(3, 1, 4)


WRONG = [{name: ""} for name in TORCHRUN if "ADDR" not in name]
WRONG += [{"RANK": "4"}, {"RANK": "-1"}, {"LOCAL_RANK": "x"}, {"WORLD_SIZE": "0"}]


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_incomplete_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    """With RANK alone, two commands could train the same run; with WORLD_SIZE alone, one waits."""
    for name, value in (TORCHRUN | change).items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="in the environment; start with torchrun, or unset"):
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
