"""The machine is chosen, said, and refused where it is not there; signals are noted."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training.config import TrainConfig
from training.runtime import (
    Runtime,
    StopSignal,
    computes_in_bfloat16,
    pick_device,
    start_runtime,
)

FORMS: list[dict[str, Any]] = [
    {"bias": True, "tie_head": True, "qk_norm": False},
    {"bias": False, "tie_head": False, "qk_norm": True, "ngrams": 2},
    {"positions": "learned", "norm": "rmsnorm", "activation": "swiglu"},
    {"attention": "explicit", "activation": "gelu"},
]


def test_the_first_line_says_what_is_used() -> None:
    runtime = start_runtime(TrainConfig(device="cpu", threads=1, precision="float32"))
    assert str(runtime) == "device cpu, 1 thread, computing in float32"
    assert torch.get_num_threads() == 1
    runtime = start_runtime(TrainConfig(device="cpu", threads=2, precision="bfloat16"))
    assert str(runtime) == "device cpu, 2 threads, computing in bfloat16"


def make(**options: Any) -> tuple[GPT, Tensor]:
    torch.manual_seed(0)
    small = {"block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16, "zero_init": False}
    return GPT(ModelConfig(**(small | options)), 7), torch.randint(0, 7, (3, 8))


def gradients(forward: Callable[[Tensor], Tensor], model: GPT, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    next_token_loss(forward(tokens[:, :-1]), tokens[:, 1:]).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_in_float32_the_model_computes_itself() -> None:
    model, tokens = make()
    forward = Runtime(torch.device("cpu"), torch.float32, 1).forward_of(model)
    assert torch.equal(forward(tokens), model(tokens))


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_in_bfloat16_it_is_close_and_weights_learn_in_float32(options: dict[str, Any]) -> None:
    model, tokens = make(**options)
    forward = Runtime(torch.device("cpu"), torch.bfloat16, 1).forward_of(model)
    exact, low = model(tokens), forward(tokens)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), exact, rtol=0, atol=0.02 * exact.abs().max().item())

    expected, found = gradients(model, model, tokens), gradients(forward, model, tokens)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for name, gradient in found.items():
        if not name.endswith("key.bias"):  # whose gradient is zero but for rounding
            alike = torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0)
            assert alike > 0.99, name


def test_all_but_the_embeddings_are_copied() -> None:
    """Their gradients are sums over many tokens, each too small for a sum in bfloat16."""
    model, tokens = make(positions="learned", ngrams=2)
    seen: dict[str, torch.dtype] = {}

    def look(module: nn.Module, *args: Any) -> None:
        seen.update({names[module]: next(iter(module.parameters(recurse=False))).dtype})

    names = {m: name for name, m in model.named_modules() if list(m.parameters(recurse=False))}
    for module in names:
        module.register_forward_hook(look)
    Runtime(torch.device("cpu"), torch.bfloat16, 1).forward_of(model)(tokens)
    assert seen.keys() >= {"token_embedding", "ngram_embeddings.0", "blocks.0.mlp.up", "final_norm"}
    for name, dtype in seen.items():
        assert dtype == (torch.float32 if "embedding" in name else torch.bfloat16), name


def test_a_copy_is_made_at_every_pass() -> None:
    model, tokens = make()
    forward = Runtime(torch.device("cpu"), torch.bfloat16, 1).forward_of(model)
    before = forward(tokens)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert not torch.equal(forward(tokens), before)


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
