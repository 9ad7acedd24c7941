"""The compiled decoder matches the model, or PyTorch decodes and a note gives the reason."""

import copy
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import model.fast.decode
from configs.config import ModelConfig
from model.attention import Attend, attention, causal_mask
from model.fast.choose import optimize_for_decoding
from model.fast.decode import (
    ACTIVATIONS,
    GPTInC,
    compile_library,
    fastest_threads,
)
from model.generate import Window
from model.gpt import GPT
from tests.model.test_gpt import VARIANTS

SUPPORTED = "model.fast.decode.ACTIVATIONS"
NO_CC = os.name != "posix" or shutil.which("cc") is None
needs_cc = pytest.mark.skipif(NO_CC, reason="no C compiler")


def make(**fields: Any) -> GPT:
    """Return a model with weights far from zero, so that every layer affects the logits."""
    torch.manual_seed(0)
    gpt = GPT(
        ModelConfig(**{"block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 16} | fields), 11
    )
    for parameter in gpt.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)
    return gpt.eval()


FIELDS = [
    {},
    {"bias": True, "tie_embeddings": True},
    {"positions": "learned", "qk_norm": False, "activation": "gelu", "ngrams": 3},
    {"positions": "learned", "activation": "relu", "head_bias": True},
    {"qk_norm": False, "activation": "gelu_tanh"},
    {"positions": "none", "n_embd": 14},  # odd head width, sizes that are no multiple of 4
    {"positions": "learned", "n_embd": 15, "n_head": 1},  # an odd number of inputs
    {"ngrams": 5, "positions": "learned", "block_size": 6},  # some n-grams begin before the text
    {"n_embd": 72},  # more than one SIMD vector, with a remainder
    {"block_size": 1},
    *({"n_head": 4, **options} for options in VARIANTS if "norm" not in options),
]


@needs_cc
@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_logits_match_the_model(fields: dict[str, Any], dtype: torch.dtype) -> None:
    """The model itself is not rounded."""
    plain = make(**fields)
    before = copy.deepcopy(plain.state_dict())
    compiled, _ = optimize_for_decoding(plain, dtype)
    assert isinstance(compiled, GPTInC)
    assert all(before[name].equal(weight) for name, weight in plain.state_dict().items())
    rounded = copy.deepcopy(plain)
    for parameter in rounded.parameters():
        parameter.data = parameter.to(dtype).float()
    windows = Window(compiled), Window(rounded)
    for length in (3, 1, 1, 12, 1, 1, 1, 3, 1, 1, 1):  # also past the window
        tokens = torch.randint(11, (3, length))
        got, want = (window.read(tokens) for window in windows)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


@needs_cc
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    compiled = GPTInC(make(n_embd=72, n_head=3, block_size=96), dtype)
    text = torch.randint(11, (2, 150))
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        window, logits = Window(compiled), []
        for part in text.split([70, 5, *[1] * 75], dim=1):  # also past the window
            compiled.threads = threads  # later tokens would use those that are faster
            logits.append(window.read(part))
        found.append(torch.stack(logits))
    assert found[0].equal(found[1]) and found[0].equal(found[2])


@needs_cc
def test_scores_far_below_zero_are_supported() -> None:
    """With a shared bias of opposite signs, all scores are near -500."""
    gpt = make(qk_norm=False, bias=True, positions="none")
    for i in range(2):
        gpt.get_parameter(f"blocks.{i}.attn.query.bias").data += 40
        gpt.get_parameter(f"blocks.{i}.attn.key.bias").data -= 40
    assert isinstance(optimize_for_decoding(gpt)[0], GPTInC)


SPEEDS = [*product((0.002, 0.01), repeat=2)]  # seconds per token of one thread, and of three


@pytest.mark.parametrize(("first", "then"), [*product(SPEEDS, repeat=2)])
def test_number_of_threads_follows_the_load(
    first: tuple[float, float], then: tuple[float, float]
) -> None:
    """The time stays near that of the better number, also after the load has changed. Every tenth
    token is interrupted for ten times as long as it takes."""
    torch.set_num_threads(3)
    choose = fastest_threads()
    threads = next(choose)
    for one, three in (first, then):
        total = 0.0
        for token in range(20_000):
            seconds = (one if threads == 1 else three) * (11 if token % 10 == 0 else 1)
            total += seconds
            threads = choose.send(seconds)
        assert total < 1.2 * min(one, three) * 2 * 20_000


def test_on_a_gpu_a_copy_computes_in_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's meta device, which holds no numbers to compare, is also no CPU."""
    monkeypatch.setattr("model.fast.choose.choose_decoder", lambda model: (model, None))
    gpt, tokens = make(), torch.randint(11, (2, 9))
    on_meta = copy.deepcopy(gpt).to("meta")
    assert optimize_for_decoding(on_meta)[0] is on_meta
    copied, _ = optimize_for_decoding(on_meta, torch.bfloat16)
    assert isinstance(copied, GPT) and copied(tokens.to("meta")).dtype == torch.bfloat16
    assert {weight.dtype for weight in on_meta.parameters()} == {torch.float32}


def sliding_window(attend: Attend, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """Attend to the last 40 positions only, which no position of the first 40 notices."""
    mask = causal_mask(q.size(-2), k.size(-2))
    return attention(q, k, v, mask & ~mask.tril(k.size(-2) - q.size(-2) - 40))


def clamp(gpt: Any, logits: Tensor) -> None:
    """Clamp the logits at the largest of the given ones."""
    gpt.head.register_forward_hook(lambda *call: call[2].clamp(max=logits.max()))


def narrow(gpt: GPT) -> None:
    """Give an MLP half of its neurons."""
    mlp: Any = gpt.blocks[1].mlp
    mlp.up, mlp.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)


def double(module: Any) -> None:
    """Double the outputs of a module."""
    module.register_forward_hook(lambda *call: 2 * call[2])


def factorize(gpt: Any) -> None:
    """Let a matrix widen narrow embeddings."""
    gpt.token_embedding = nn.Embedding(11, 4)
    widen = nn.Linear(4, 16)
    gpt.token_embedding.register_forward_hook(lambda *call: widen(call[2]))


NO_NORM = ModelConfig(block_size=48, n_layer=2, n_head=2, n_embd=16, norm="none")
Edit = Callable[[pytest.MonkeyPatch, Any], None]
EDITS = [
    ("different logits", lambda patch, gpt: patch.setattr(Attend, "forward", sliding_window)),
    ("different logits", lambda patch, gpt: clamp(gpt, gpt(torch.arange(96).view(2, 48) % 11))),
    ("the shapes", lambda patch, gpt: narrow(gpt)),
    ("different logits", lambda patch, gpt: double(gpt.token_embedding)),
    ("not support model.activation relu2", lambda patch, gpt: patch.setattr(SUPPORTED, [])),
    ("not support model.norm none", lambda patch, gpt: setattr(gpt, "config", NO_NORM)),
]


@needs_cc
@pytest.mark.parametrize(("why", "edit"), EDITS)
def test_edited_model_decodes_in_pytorch(
    why: str, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt = make(block_size=48)
    edit(monkeypatch, gpt)
    decoder, note = optimize_for_decoding(gpt)
    assert decoder is gpt
    assert note and note.startswith("decoding is not compiled") and why in note


@needs_cc
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_propagates_nan(activation: str) -> None:
    gpt = make(activation=activation)
    nn.init.constant_(gpt.get_parameter("blocks.0.mlp.up.weight"), torch.nan)
    assert GPTInC(gpt).forward(torch.zeros(1, 1, dtype=torch.long)).isnan().all()


# --- the compiled file ----------------------------------------------------------------------------


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with the C source, in which nothing is compiled yet."""
    shutil.copy(Path(model.fast.decode.__file__).with_suffix(".c"), tmp_path)
    monkeypatch.setattr(model.fast.decode, "__file__", str(tmp_path / "decode.py"))
    compile_library.cache_clear()
    yield tmp_path
    compile_library.cache_clear()


@needs_cc
def test_cached_library_is_reused_only_if_current_and_valid(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> Path:  # the real CDLL caches libraries by name
        if not Path(name).read_bytes():
            raise OSError("file too short")
        return Path(name)

    (folder / "decode.c").write_text("int quick_to_compile;\n")
    monkeypatch.setattr(ctypes, "CDLL", load)
    compile_again = compile_library.__wrapped__
    older = compile_again(torch.float32)
    with (folder / "decode.c").open("a") as source:
        source.write("/* changed */\n")
    file = compile_again(torch.float32)
    assert file != older
    whole = file.read_bytes()
    file.write_bytes(b"")
    assert compile_again(torch.float32) == file and file.read_bytes() == whole
    monkeypatch.setenv("PATH", "")  # no compiler
    assert compile_again(torch.float32) == file


def test_model_decodes_without_a_working_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "cc").write_text("#!/bin/sh\nexit 1\n")
    (folder / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    gpt = make()
    weight = gpt.token_embedding.weight.detach().clone()
    for dtype in (torch.float32, torch.bfloat16):
        decoder, note = optimize_for_decoding(gpt, dtype)
        assert decoder is gpt
        assert note and "not compiled, and therefore slower and in float32" in note
    assert gpt.token_embedding.weight.equal(weight)


@needs_cc
def test_token_beyond_the_vocabulary_is_an_error() -> None:
    decoder, _ = optimize_for_decoding(make())
    for token in (-1, 11):
        with pytest.raises(IndexError):
            decoder.forward(torch.tensor([[3, token]]), decoder.new_cache())
