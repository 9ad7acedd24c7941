"""The machine is chosen, said, and refused where it is not there; signals are noted."""

import os
import signal
from typing import Literal

import pytest
import torch

from errors import UserError
from training.config import TrainConfig
from training.runtime import StopSignal, computes_in_bfloat16, pick_device, start_runtime


def test_the_first_line_says_what_is_used() -> None:
    runtime = start_runtime(TrainConfig(device="cpu", threads=1, precision="float32"))
    assert str(runtime) == "device cpu, 1 thread, matrix products in float32"
    assert torch.get_num_threads() == 1
    runtime = start_runtime(TrainConfig(device="cpu", threads=2, precision="bfloat16"))
    assert str(runtime) == "device cpu, 2 threads, matrix products in bfloat16"


def test_autocast_is_for_products() -> None:
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    precisions: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
    for precision in precisions:
        runtime = start_runtime(TrainConfig(device="cpu", precision=precision))
        with runtime.autocast():
            assert layer(x).dtype == getattr(torch, precision)


def test_auto_precision_is_never_float16_on_a_cpu() -> None:
    runtime = start_runtime(TrainConfig(device="cpu"))
    fast = computes_in_bfloat16(torch.device("cpu"))
    assert runtime.precision == (torch.bfloat16 if fast else torch.float32)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto").type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"there is no {name} device here; .* sees: cpu"):
            pick_device(name)


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


def test_more_threads_than_any_use_are_refused() -> None:
    with pytest.raises(UserError, match=r"--train.threads 100000 is too many for the"):
        start_runtime(TrainConfig(device="cpu", threads=100_000))


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_the_first_signal_is_noted_and_the_second_acts(number: signal.Signals, code: int) -> None:
    class Acted(Exception):
        pass

    def act(*args: object) -> None:
        raise Acted

    before = signal.signal(number, act)
    try:
        with StopSignal() as stop:
            assert not stop
            os.kill(os.getpid(), number)
            assert stop and stop.exit_code == code
            with pytest.raises(Acted):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is act
    finally:
        signal.signal(number, before)
