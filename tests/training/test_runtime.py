"""The machine is chosen, said, and refused where it is not there; signals are noted."""

import os
import signal
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training import runtime
from training.config import TrainConfig
from training.runtime import (
    Machine,
    Runtime,
    StopSignal,
    computes_in_bfloat16,
    pick_device,
    start_runtime,
)

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


def test_a_cpu_is_fast_in_bfloat16_by_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, fast in (({}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert computes_in_bfloat16(CPU) == fast
    assert not computes_in_bfloat16(torch.device("mps"))


def test_the_machine_in_words_and_in_a_checkpoint() -> None:
    assert str(Runtime(CPU, torch.float32, 1)) == "device cpu, 1 thread, computing in float32"
    two = Runtime(CPU, torch.bfloat16, 2)
    assert str(two) == "device cpu, 2 threads, computing in bfloat16"
    processor = torch.backends.cpu.get_cpu_capability()
    assert two.machine(3) == Machine("cpu", processor, 2, 3, "bfloat16", torch.__version__)


def test_auto_takes_a_gpu_and_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, best in ((1, 1, "cuda"), (0, 1, "mps"), (0, 0, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: bool(cuda))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: bool(mps))
        monkeypatch.delenv("LOCAL_RANK", raising=False)
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


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_computes_in_the_precision_and_learns_in_float32(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    config = ModelConfig(block_size=8, n_layer=3, n_head=2, n_embd=16, ngrams=2, zero_init=False)
    model, tokens = GPT(config, 7), torch.randint(0, 7, (3, 8))

    def run(model: GPT) -> tuple[Tensor, dict[str, Any]]:
        model.zero_grad()
        logits = model(tokens[:, :-1])
        next_token_loss(logits, tokens[:, 1:]).backward()
        return logits.detach(), {name: p.grad for name, p in model.named_parameters()}

    exact, expected = run(model)
    assert Runtime(CPU, precision, 1).prepare(model) is model
    low, gradients = run(model)
    assert low.dtype == precision
    assert torch.equal(low.float(), exact) == (precision == torch.float32)
    torch.testing.assert_close(low.float(), exact, rtol=0, atol=0.02 * exact.abs().max().item())
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32
        alike = torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0)
        assert alike > 0.99, name


# --- signals -------------------------------------------------------------------------------------


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_the_first_signal_is_noted_and_the_second_acts(
    number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
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
            assert (
                capfd.readouterr().err == "\nstopping after this step; once more to stop at once\n"
            )
            with pytest.raises(Acted):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is act
    finally:
        signal.signal(number, before)


def test_a_second_ctrl_c_stops_also_where_the_first_would_have_killed() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
