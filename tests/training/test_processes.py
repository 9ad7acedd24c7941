"""The processes that torchrun describes in the environment."""

import pytest

from common.errors import UserError
from training.machine import Processes, read_processes

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
