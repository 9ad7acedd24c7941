"""Untrusted files: damaged ones are rejected in one line, and nothing in them is executed."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import convert
from tests.formats.models import edit_json
from tests.formats.test_nanogpt import CHARS, SIZES, save, save_meta, weights_of
from tests.test_malformed import Bomb

Error = Callable[..., str]
CONFIG, TOKENS, WEIGHTS = (
    Path("theirs") / name for name in ("config.json", "tokenizer.json", "model.safetensors")
)
CKPT, META = Path("nanoGPT/out/ckpt.pt"), Path("nanoGPT/data/shakespeare_char/meta.pkl")


@pytest.fixture
def error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Error:
    """Return a function that returns the error of a failing import, which must leave no files."""

    def import_error(path: Path | str) -> str:
        before = sorted(Path().rglob("*"))
        capsys.readouterr()
        assert convert.main(["import", str(path), "--run=g"]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: ") and line.count("\n") == 1 and len(line) < 1000, line
        assert line[:-1].isprintable() and "Traceback" not in line
        assert sorted(Path().rglob("*")) == before  # nothing was created or executed
        return line

    return import_error


@pytest.fixture
def theirs(gpt2: Path, workplace: Path) -> Path:
    """Return a copy of a GPT-2 folder for the test to damage."""
    return Path(shutil.copytree(gpt2, "theirs"))


@pytest.mark.parametrize("path", [CONFIG, TOKENS, WEIGHTS], ids=str)
def test_damaged_file_of_a_folder_is_rejected(theirs: Path, error: Error, path: Path) -> None:
    whole = path.read_bytes()
    for content in (b"", whole[:-9], b"[]", b"\xff\0", b"[" * 100_000):
        path.write_bytes(content)
        assert "theirs" in error("theirs")
    path.unlink()
    assert "theirs" in error("theirs")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "theirs: model_type must be gpt2, got 'bert'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon must be 1e-05, got 1e-06"),
        ({"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx must be False, got True"),
        ({"activation_function": "silu"}, "theirs: activation_function must be"),
        ({"n_layer": ...}, "theirs: n_layer must be a valid integer, got None"),
        ({"n_head": 5}, "n_embd 24 must be divisible by n_head 5"),
        ({"n_layer": 1}, "theirs: h.1.attn.c_attn.bias is not a tensor of GPT2LMHeadModel"),
        ({"tie_word_embeddings": False}, "head.weight"),
    ],
    ids=str,
)
def test_unsupported_config_is_rejected(
    theirs: Path, error: Error, changes: dict[str, Any], message: str
) -> None:
    edit_json(CONFIG, **changes)
    assert message in error("theirs")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(96, 24), "size mismatch for blocks.1.mlp.up.weight"),
        (torch.full((24, 96), torch.nan), "blocks.1.mlp.up.weight is not finite"),
    ],
)
def test_misshapen_or_nan_weight_is_rejected(
    theirs: Path, error: Error, tensor: torch.Tensor, message: str
) -> None:
    save_file(load_file(WEIGHTS) | {"transformer.h.1.mlp.c_fc.weight": tensor}, WEIGHTS)
    assert message in error("theirs")


def test_code_in_a_folder_is_not_executed(theirs: Path) -> None:
    Path("theirs/modeling_gpt2.py").write_text("open('exploded', 'w')\nclass GPT2LMHeadModel: pass")
    edit_json(CONFIG, auto_map={"AutoModelForCausalLM": "modeling_gpt2.GPT2LMHeadModel"})
    Path("theirs/pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert convert.main(["import", "theirs", "--run=g"]) == 0
    assert not list(Path().rglob("exploded"))


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
END = {"id": 299, "content": "<|endoftext|>", "special": True, "single_word": False}
END |= {"lstrip": False, "rstrip": False, "normalized": False}
STRANGE = {
    "a normalizer": lambda p: p.update(normalizer={"type": "NFC"}),
    "a prefix space": lambda p: p.update(pre_tokenizer=BYTES | {"add_prefix_space": True}),
    "another order": lambda p: p["model"]["vocab"].update(a=65, b=64),
    "more tokens": lambda p: p["model"]["vocab"].update(more=300),
    "a lone surrogate": lambda p: p.update(added_tokens=[END | {"content": "\ud800"}]),
    "an added token in texts": lambda p: p.update(
        added_tokens=[END, END | {"content": "a", "id": p["model"]["vocab"]["a"]}]
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_unsupported_tokenizer_is_rejected(theirs: Path, error: Error, name: str) -> None:
    plain = json.loads(TOKENS.read_text())
    STRANGE[name](plain)
    TOKENS.write_text(json.dumps(plain))
    assert f"{TOKENS} is damaged" in error("theirs")


# --- nanoGPT's checkpoints -----------------------------------------------------------------------


@pytest.fixture
def ckpt(workplace: Path) -> dict[str, Any]:
    """Save a checkpoint and its characters, and return the contents of the checkpoint."""
    save(SIZES, weights_of(SIZES))
    save_meta()
    plain = torch.load(CKPT, weights_only=True)
    return plain


def test_file_that_is_not_a_checkpoint_is_rejected(ckpt: dict[str, Any], error: Error) -> None:
    whole = CKPT.read_bytes()
    torch.save(ckpt | {"more": Bomb()}, CKPT)
    bombs = CKPT.read_bytes(), pickle.dumps(Bomb())
    for content in (*bombs, b"", whole[:-9], whole[999:], b"text"):
        CKPT.write_bytes(content)
        assert f"{CKPT} is not a file of tensors and plain data" in error(CKPT)
    others = [[ckpt], {"model_args": SIZES}]
    for tensor in ("x", torch.empty(20, 18, device="meta")):
        others.append(ckpt | {"model": ckpt["model"] | {"transformer.wpe.weight": tensor}})
    for changes in ({"n_head": "3"}, {"n_layer": 3}, {"vocab_size": None}):
        others.append(ckpt | {"model_args": SIZES | changes})
    for other in others:
        torch.save(other, CKPT)
        assert str(CKPT) in error(CKPT)


def test_malformed_meta_pkl_is_rejected(ckpt: dict[str, Any], error: Error) -> None:
    good = dict(enumerate(CHARS))
    damaged = [{}, {"itos": None}, {"itos": list(CHARS)[:-1]}]
    damaged += [{"itos": good | changed} for changed in ({3: "ab"}, {3: 5}, {3: CHARS[4]})]
    damaged += [{"itos": good, "more": Bomb()}, {"itos": good, "more": len}]
    contents = [pickle.dumps(plain) for plain in damaged]
    for content in (*contents, b"", contents[3][:-9], b"cos\nsystem\n(S'touch exploded'\ntR."):
        META.write_bytes(content)
        assert f"{META} is damaged" in error(CKPT)
    save_meta("nanoGPT/elsewhere/meta.pkl")
    for config in (None, {}, {"dataset": "../elsewhere"}):
        torch.save(ckpt | {"config": config}, CKPT)
        assert str(CKPT) in error(CKPT) or "--tokenizer meta.pkl" in error(CKPT)
