"""The choice of device, threads, precision and processes, and stop signals."""

import os
import signal

import pytest
import torch

from common.errors import UserError
from configs.config import TrainConfig
from training.machine import (
    SIGNALS,
    Machine,
    Processes,
    StopSignal,
    pick_device,
    prepare_machine,
    read_processes,
)

ALONE = Processes()


def test_threads_and_precision_are_configured_or_automatic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run keeps its number of threads if this machine has at least as many cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def machine(threads: int) -> Machine:
        return Machine("cpu", "AVX2", threads, 1, "float32", torch.__version__)

    resumed = ((2, machine(1), 2), (0, machine(2), 2), (0, machine(3), 1), (0, None, 1))
    for threads, before, expected in resumed:
        torch.set_num_threads(1)
        chosen = prepare_machine(TrainConfig(device="cpu", threads=threads), ALONE, before)
        assert chosen.threads == torch.get_num_threads() == expected
    for fast, auto in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda fast=fast: {"amx_bf16": fast})
        assert prepare_machine(TrainConfig(device="cpu"), ALONE).precision == auto
        for name in ("float32", "bfloat16"):
            config = TrainConfig(device="cpu", precision=name)
            assert prepare_machine(config, ALONE).precision == name


def test_auto_device_is_a_gpu_and_each_rank_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for cuda, mps, best in ((1, 1, "cuda"), (0, 1, "mps"), (0, 0, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: bool(cuda))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: bool(mps))
        assert pick_device("auto", 3) == best and pick_device("cpu") == "cpu"
    assert chosen == [3]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=r"fewer GPUs than processes: 4$"):
        pick_device("cuda", 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"there is no {name} device; available: cpu$"):
            pick_device(name)


TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
TORCHRUN |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_processes_are_those_that_torchrun_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_processes() == Processes(0, 0, 1)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert read_processes() == Processes(3, 1, 4)
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(UserError, match="set all of RANK, LOCAL"):
        read_processes()


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", sorted(SIGNALS))
@pytest.mark.parametrize("second", sorted(SIGNALS))
def test_first_signal_requests_a_stop_and_the_second_interrupts(
    number: signal.Signals, second: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (number, second)}
    try:
        with StopSignal() as stop:
            assert not stop.number
            signal.raise_signal(number)
            assert stop.number == number
            said = "\nstopping soon; repeat to stop at the last checkpoint\n"
            assert capfd.readouterr().err == said
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(second)
        assert signal.getsignal(number) == signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)
        with StopSignal() as stop:  # a background job of a script ignores the signal
            signal.raise_signal(number)
            assert not stop.number
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
