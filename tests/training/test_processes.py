"""Several processes share a batch; what concerns one process alone. Real jobs are in
tests/test_processes.py."""

import os
import socket
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.errors import UserError
from training.config import TrainConfig
from training.processes import ALONE, Processes, exit_now, join_processes, no_sync, tear_down
from training.runtime import StopSignal, torchrun_ranks

CPU = torch.device("cpu")


@given(st.integers(1, 6), st.integers(1, 4))
def test_shards_are_the_batch(size: int, rows: int) -> None:
    batch = torch.arange(2 * size * rows).view(-1, 2)
    shards = [Processes(rank, size).shard(batch) for rank in range(size)]
    assert {len(shard) for shard in shards} == {rows} and torch.equal(torch.cat(shards), batch)


def test_a_process_alone_keeps_what_it_has() -> None:
    layer, stop = nn.Linear(2, 2), StopSignal()
    assert ALONE.is_main and str(ALONE) == "" and ALONE.wrap_ddp(layer) is layer
    assert ALONE.sum([1.5, 2.0]) == [1.5, 2.0] and ALONE.all_reduce_max(-3) == -3
    assert ALONE.gather(torch.ones(2))[0].tolist() == [1, 1] and exit_now(7) == 7
    assert not ALONE.stop_requested(stop)
    stop.number = 15
    assert ALONE.stop_requested(stop) and stop.number == 15
    with no_sync(layer, wanted=True):
        pass
    assert not Processes(1, 2).is_main and str(Processes(1, 2)) == ", one of 2 processes"


def test_a_signal_to_another_process_stops_this_one_with_its_code() -> None:
    class Other(Processes):
        largest = iter([0, 15, 0])

        def all_reduce_max(self, number: int) -> int:
            return max(number, next(self.largest))

    stop, processes = StopSignal(), Other(0, 2)
    assert not processes.stop_requested(stop)
    for _ in range(2):
        assert processes.stop_requested(stop) and stop.exit_code == 143


def torchrun(monkeypatch: pytest.MonkeyPatch, **variables: Any) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_torchrun_says_which_process_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch)
    assert torchrun_ranks() == (0, 0, 1)
    assert join_processes(TrainConfig(), CPU, ExitStack()) is ALONE
    torchrun(monkeypatch, RANK=5, LOCAL_RANK=1, WORLD_SIZE=6)
    assert torchrun_ranks() == (5, 1, 6)


def refused_to_join(monkeypatch: pytest.MonkeyPatch, **variables: Any) -> str:
    """What is said of these variables, in one line."""
    torchrun(monkeypatch, **variables)
    with pytest.raises(UserError) as error:
        join_processes(TrainConfig(batch_size=12, gradient_accumulation_steps=2), CPU, ExitStack())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_torchrun_does_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[dict[str, Any]] = [
        *({"WORLD_SIZE": 0}, {"WORLD_SIZE": ""}, {"RANK": "x"}, {"RANK": 1}),
        *({"RANK": 2, "WORLD_SIZE": 2}, {"RANK": -1, "WORLD_SIZE": 2}),
        {"RANK": 1, "LOCAL_RANK": -1, "WORLD_SIZE": 2},
        {"RANK": 1, "LOCAL_RANK": 2, "WORLD_SIZE": 4},
    ]
    for variables in wrong:
        said = refused_to_join(monkeypatch, **variables)
        assert said.endswith("in the environment are not what torchrun sets")
        assert all(f"{name}={value}" in said for name, value in variables.items())


def test_a_batch_is_split_evenly_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refused_to_join(monkeypatch, WORLD_SIZE=4)
    line = "--train.batch_size 12 must be divisible by 4 processes times --train.gradient_acc"
    assert said.startswith(line)


def test_others_that_cannot_be_reached_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address, no port, a port that is no number, and one in use; no wait in any of them."""
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        here, port = {"MASTER_ADDR": "127.0.0.1"}, used.getsockname()[1]
        for place in (
            {"MASTER_PORT": port},
            here,
            *(here | {"MASTER_PORT": p} for p in ("x", port)),
        ):
            said = refused_to_join(monkeypatch, RANK=0, WORLD_SIZE=2, **place)
            assert said.startswith("could not reach the other 1 processes: ")
    assert not dist.is_initialized()


def test_a_group_is_left_alone_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken down while the error's traceback holds what uses it, it can hang, if not each time."""
    taken_down: list[bool] = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: taken_down.append(True))
    with pytest.raises(UserError), ExitStack() as held:
        held.push(tear_down)
        raise UserError("at step 2: the loss is nan")
    assert not taken_down
    with ExitStack() as held:
        held.push(tear_down)
    assert taken_down


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), 2),
        (RuntimeError("a bug"), 4),
        (KeyboardInterrupt(), 3),
    ],
    ids=repr,
)
def test_a_process_of_a_job_ends_at_once_where_another_is_gone(
    error: BaseException, code: int
) -> None:
    child = os.fork()
    if child == 0:
        try:
            dist.is_initialized = lambda: True
            with ExitStack() as held:
                held.push(tear_down)
                raise error
        except KeyboardInterrupt:
            exit_now(3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
