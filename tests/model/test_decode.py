"""The decoder in C gives the model's numbers, or it is not used, and a note says why."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import model.decode
from model.attention import Attend, attention, causal_mask
from model.config import ModelConfig
from model.decode import CompiledGPT, compile_library, optimize_for_decoding
from model.generate import Decoder
from model.gpt import GPT
from model.kernels import ACTIVATIONS

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def make(**fields: Any) -> GPT:
    """Of weights that are far from zero, so that each layer weighs as much as the embedding."""
    torch.manual_seed(0)
    plain = {"block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 16}
    gpt = GPT(ModelConfig(**plain | fields), 11).eval()
    for parameter in gpt.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            nn.init.normal_(parameter, std=0.3)
    return gpt


FIELDS: list[dict[str, Any]] = [
    {},
    {"bias": True, "tie_embeddings": True},
    {"activation": "swiglu", "ngrams": 3},
    {"positions": "learned", "qk_norm": False, "activation": "gelu"},
    {"positions": "learned", "norm": "rmsnorm"},
    {"qk_norm": False, "activation": "gelu_tanh"},
    {"positions": "none", "n_embd": 14},  # heads of an odd width, and no multiple of 4 outputs
    {"n_embd": 72},  # more than a vector, and some
    {"block_size": 1},
]


@needs_cc
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_the_same_numbers(fields: dict[str, Any]) -> None:
    plain = make(**fields)
    compiled = optimize_for_decoding(plain)
    assert isinstance(compiled, CompiledGPT)
    decoders = [Decoder(m) for m in (compiled, plain)]
    for length in (3, 1, 1, 12, 1, 1, 1, 3, 1, 1, 1):  # past the window, too
        tokens = torch.randint(11, (3, length))
        got, want = (decoder.read(tokens) for decoder in decoders)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
    tokens = tokens[:, -plain.config.block_size :]
    torch.testing.assert_close(compiled(tokens), plain(tokens), rtol=1e-4, atol=1e-4)


class Doubled(GPT):
    def unembed(self, x_BTC: Tensor) -> Tensor:
        return 2 * super().unembed(x_BTC)


def near(attend: Attend, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """Attention to the last 20 positions only."""
    mask = causal_mask(q.size(-2), k.size(-2))
    return attention(q, k, v, mask & ~mask.tril(k.size(-2) - q.size(-2) - 20))[0]


def edited(edit: str, patch: pytest.MonkeyPatch) -> GPT:
    if edit == "another activation":
        patch.setitem(ACTIVATIONS, "relu2", torch.relu)
    gpt = make(block_size=48)
    mlp: Any = gpt.get_submodule("blocks.1.mlp")
    if edit == "softcap":
        unembed = GPT.unembed
        patch.setattr(GPT, "unembed", lambda self, x: 30 * torch.tanh(unembed(self, x) / 30))
    elif edit == "subclass":
        gpt.__class__ = Doubled
    elif edit == "sliding window":
        patch.setattr(Attend, "forward", near)
    elif edit == "wider layer":
        mlp.up, mlp.down = nn.Linear(16, 80, bias=False), nn.Linear(80, 16, bias=False)
    elif edit == "renamed weight":
        mlp.fc = mlp.up
        del mlp.up
        mlp.forward = lambda x: mlp.down(torch.relu(mlp.fc(x)))
    elif edit == "unknown choice":
        patch.setitem(model.decode.KNOWN, "activation", ["gelu"])
    return gpt


EDITS = {
    "softcap": "other logits",
    "subclass": "other logits",
    "another activation": "other logits",
    "sliding window": "other logits",
    "wider layer": "other shapes",
    "renamed weight": "other shapes",
    "unknown choice": "does not know model.activation relu2",
}


@needs_cc
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_model_decodes_itself(
    edit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt = edited(edit, monkeypatch)
    assert optimize_for_decoding(gpt) is gpt
    note = capsys.readouterr().err
    assert note.startswith("note: decoding is not compiled") and EDITS[edit] in note


@needs_cc
@pytest.mark.parametrize("activation", ["relu2", "gelu", "gelu_tanh", "swiglu"])
def test_nan_is_not_lost_in_an_activation(activation: str) -> None:
    gpt = make(activation=activation)
    nn.init.constant_(gpt.get_parameter("blocks.0.mlp.up.weight"), torch.nan)
    assert CompiledGPT(gpt)(torch.zeros(1, 1, dtype=torch.long)).isnan().all()


def test_another_precision_is_not_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    gpt = make().double()
    assert optimize_for_decoding(gpt) is gpt
    assert capsys.readouterr().err == ""


# --- the compiled file ----------------------------------------------------------------------------


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the source is, and nothing is compiled yet."""
    shutil.copy(Path(model.decode.__file__).with_suffix(".c"), tmp_path)
    monkeypatch.setattr(model.decode, "__file__", str(tmp_path / "decode.py"))
    compile_library.cache_clear()
    yield tmp_path
    compile_library.cache_clear()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@needs_cc
@pytest.mark.parametrize("damage", [lambda file: None, cut, lambda file: file.write_bytes(b"")])
def test_a_damaged_library_is_compiled_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    compile_library()
    (file,) = folder.glob("__pycache__/*")
    whole = file.read_bytes()
    file.unlink()  # the loaded one stays in memory
    file.write_bytes(whole)
    damage(file)
    damaged = file.read_bytes() != whole
    compile_library.cache_clear()
    assert isinstance(optimize_for_decoding(make()), CompiledGPT)
    assert file.read_bytes() == whole
    damage(file)
    compile_library.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert isinstance(optimize_for_decoding(make()), CompiledGPT) is not damaged


@needs_cc
def test_anothers_library_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_library()
    compile_library.cache_clear()
    stat = Path.stat

    def another(path: Path, **how: Any) -> Any:
        owner = os.getuid() + (path.suffix == ".so")
        return SimpleNamespace(st_uid=owner, st_mode=stat(path, **how).st_mode)

    monkeypatch.setattr(Path, "stat", another)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="cc"):
        compile_library()


@pytest.mark.parametrize("compiler", ["", "#!/bin/sh\nexit 1\n"])
def test_without_a_compiler_that_works_the_model_decodes(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    compiler: str,
) -> None:
    if compiler:
        (folder / "cc").write_text(compiler)
        (folder / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    gpt = make()
    assert optimize_for_decoding(gpt) is gpt
    assert "not compiled" in capsys.readouterr().err
