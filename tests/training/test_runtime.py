"""The machine is chosen, said, and refused where it is not there; signals are noted."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import convert
import sample
import study
import train
from common.errors import UserError
from tests.conftest import ROOT, make_run
from training import runtime
from training.config import TrainConfig
from training.runtime import Machine, Runtime, StopSignal, pick_device, start_runtime

CPU = torch.device("cpu")


def test_the_config_chooses_or_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for threads, before, expected in ((2, 0, 2), (2, 1, 2), (0, 2, 2), (0, 9, 1), (0, 0, 1)):
        torch.set_num_threads(1)
        chosen = start_runtime(TrainConfig(device="cpu", threads=threads), before)
        assert chosen.threads == torch.get_num_threads() == expected
    with pytest.raises(UserError, match=r"^--train.threads 9 is too many for the 2 cores here$"):
        start_runtime(TrainConfig(device="cpu", threads=9))
    for fast in (True, False):
        monkeypatch.setattr(runtime, "computes_in_bfloat16", lambda device, fast=fast: fast)
        auto = start_runtime(TrainConfig(device="cpu")).precision
        assert auto == (torch.bfloat16 if fast else torch.float32)
        for name in ("float32", "bfloat16"):
            config = TrainConfig(device="cpu", precision=name)
            assert start_runtime(config).precision == getattr(torch, name)


def test_as_many_threads_as_are_faster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half as many, as long as those are clearly faster; and it is said how to have all."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    asked: list[tuple[int, int]] = []
    table = {(6, 12): 2.0, (3, 6): 1.5, (1, 3): 1.2}

    def times_as_fast(few: int, many: int) -> float:
        asked.append((few, many))
        torch.set_num_threads(few)
        return table[few, many]

    monkeypatch.setattr(runtime, "times_as_fast", times_as_fast)

    def threads_of(config: TrainConfig, before: int = 0) -> int:
        torch.set_num_threads(12)
        return start_runtime(config, before).threads

    auto = TrainConfig(device="cpu")
    assert threads_of(auto) == torch.get_num_threads() == 3 and asked == list(table)
    said = capsys.readouterr().err
    assert said.startswith("note: using 3 of 12 threads, ")
    assert "; --train.threads 12 uses all\n" in said
    table[6, 12] = 1.2
    assert threads_of(auto) == 12
    asked.clear()
    assert threads_of(TrainConfig(device="cpu", threads=2)) == threads_of(auto, 2) == 2
    for name, value in (("OMP_NUM_THREADS", "12"), ("WORLD_SIZE", "2")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert threads_of(auto) == 12
    assert not asked and capsys.readouterr().err == ""


def test_work_is_timed_on_few_threads_and_on_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that each product moves on by the threads it has."""
    now, product = [0.0], torch.Tensor.__matmul__

    def slow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        now[0] += torch.get_num_threads()
        return product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", slow)
    monkeypatch.setattr(runtime, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert runtime.times_as_fast(1, 2) == 2


COMMANDS: dict[str, Callable[[], int]] = {
    "train": lambda: train.main(["--evaluate=a", "--train.device=cpu"]),
    "sample": lambda: sample.main(["a", "--max_new_tokens=1", "--device=cpu"]),
    "study": lambda: study.main(["trace", "a"]),
    "convert": lambda: convert.main(["export", "a", "exported"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_fits_its_threads(
    command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Path("runs/a"), source=str(ROOT / "README.md"), chars=None)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(runtime, "times_as_fast", lambda few, many: 9.0)
    torch.set_num_threads(2)
    assert COMMANDS[command]() == 0
    assert torch.get_num_threads() == 1


def test_a_cpu_is_fast_in_bfloat16_by_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, fast in (({}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert runtime.computes_in_bfloat16(CPU) == fast
    assert not runtime.computes_in_bfloat16(torch.device("mps"))


def test_the_machine_in_words_and_in_a_checkpoint() -> None:
    assert str(Runtime(CPU, torch.float32, 1)) == "device cpu, 1 thread, computing in float32"
    two = Runtime(CPU, torch.bfloat16, 2)
    assert str(two) == "device cpu, 2 threads, computing in bfloat16"
    processor = torch.backends.cpu.get_cpu_capability()
    assert two.machine(3) == Machine("cpu", processor, 2, 3, "bfloat16", torch.__version__)


def test_auto_takes_a_gpu_and_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for cuda, mps, best in ((1, 1, "cuda"), (0, 1, "mps"), (0, 0, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: bool(cuda))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: bool(mps))
        assert pick_device("auto").type == best and pick_device("cpu").type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"there is no {name} device here; .* sees: cpu$"):
            pick_device(name)


def test_each_process_of_a_machine_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name, value in (("RANK", "3"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    assert pick_device("cuda") == torch.device("cuda") and chosen == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match=r"no GPU for process 3 of this machine, which has 2; .*=2"):
        pick_device("cuda")


# --- signals -------------------------------------------------------------------------------------


class Acted(Exception):
    pass


def act(*args: object) -> None:
    raise Acted


BEFORE: list[tuple[signal.Signals, int, Any, type[BaseException]]] = [
    (signal.SIGINT, 130, act, Acted),
    (signal.SIGINT, 130, signal.SIG_DFL, KeyboardInterrupt),  # not killed at once
    (signal.SIGTERM, 143, act, Acted),
    (signal.SIGHUP, 129, act, Acted),
]


@pytest.mark.parametrize(("number", "code", "handler", "second"), BEFORE)
def test_the_first_signal_is_noted_and_the_second_acts(
    number: signal.Signals,
    code: int,
    handler: Any,
    second: type[BaseException],
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = signal.signal(number, handler)
    try:
        with StopSignal() as stop:
            assert not stop
            os.kill(os.getpid(), number)
            assert stop and stop.exit_code == code
            said = "\nstopping after this step; repeat to stop at once\n"
            assert capfd.readouterr().err == said
            with pytest.raises(second):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) in (act, signal.default_int_handler)
        signal.signal(number, signal.SIG_IGN)
        with StopSignal() as stop:  # as under nohup
            os.kill(os.getpid(), number)
            assert not stop
    finally:
        signal.signal(number, before)
