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

from formats.__main__ import main
from tests.formats.models import edit_json
from tests.formats.test_nanogpt import CHARS, SIZES, save, save_meta, weights_of
from tests.test_bad_input import Bomb

Error = Callable[[Path], str]
CONFIG, TOKENS, WEIGHTS = (
    Path("theirs") / name for name in ("config.json", "tokenizer.json", "model.safetensors")
)
CKPT, META = Path("nanoGPT/out/ckpt.pt"), Path("nanoGPT/data/shakespeare_char/meta.pkl")


@pytest.fixture
def error(gpt2: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> Error:
    """Save a GPT-2 folder and a checkpoint of nanoGPT for the test to damage. Return a function
    that returns the error of importing what a file belongs to, which must leave no files."""
    shutil.copytree(gpt2, "theirs")
    save()
    save_meta()

    def import_error(damaged: Path) -> str:
        before = sorted(Path().rglob("*"))
        capsys.readouterr()
        word = CKPT if damaged in (CKPT, META) else damaged.parent
        assert main(["import", str(word), "--run=g"]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: ") and line.count("\n") == 1 and len(line) < 1000, line
        assert line[:-1].isprintable() and "Traceback" not in line
        assert sorted(Path().rglob("*")) == before  # nothing was created or executed
        return line

    return import_error


@pytest.mark.parametrize("path", [CONFIG, TOKENS, WEIGHTS, CKPT, META], ids=str)
def test_damaged_file_is_rejected(error: Error, path: Path) -> None:
    whole = path.read_bytes()
    for content in (b"", whole[:-9], whole[9:], b"[" * 100_000, pickle.dumps(Bomb())):
        path.write_bytes(content)
        assert path.parts[0] in error(path)
    path.unlink()
    error(path)


def test_unsupported_config_or_weight_is_rejected(error: Error) -> None:
    plain, weights = CONFIG.read_text(), load_file(WEIGHTS)
    changes: dict[str, dict[str, Any]] = {
        "epsilon 1e-06 is not supported, only 1e-05": {"layer_norm_epsilon": 1e-6},
        "theirs: activation_function must be": {"activation_function": "silu"},
        "theirs: n_layer must be a valid integer, got None": {"n_layer": ...},
        "theirs: h.1.attn.c_attn.bias is not a tensor of GPT2LMHeadModel": {"n_layer": 1},
        "head.weight": {"tie_word_embeddings": False},
    }
    for message, fields in changes.items():
        edit_json(CONFIG, **fields)
        assert message in error(CONFIG)
        CONFIG.write_text(plain)
    for message, tensor in (
        ("blocks.1.mlp.up.weight is [24, 96], expected [96, 24]", torch.ones(96, 24)),
        ("blocks.1.mlp.up.weight is not finite", torch.full((24, 96), torch.nan)),
    ):
        save_file(weights | {"transformer.h.1.mlp.c_fc.weight": tensor}, WEIGHTS)
        assert message in error(WEIGHTS)
    grouped = {n: t[: -t.size(0) // 3] if "c_attn" in n else t for n, t in weights_of().items()}
    save(weights=grouped)
    line = error(CKPT)
    assert "grouped queries and gated MLPs are not supported" in line and "damaged" not in line


def test_code_in_a_folder_is_not_executed(error: Error) -> None:
    Path("theirs/modeling_gpt2.py").write_text("open('exploded', 'w')\nclass GPT2LMHeadModel: pass")
    edit_json(CONFIG, auto_map={"AutoModelForCausalLM": "modeling_gpt2.GPT2LMHeadModel"})
    Path("theirs/pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert main(["import", "theirs", "--run=g"]) == 0
    assert not list(Path().rglob("exploded"))


def test_tokenizer_that_splits_differently_is_rejected(error: Error) -> None:
    plain = json.loads(TOKENS.read_text())
    model, end = plain["model"], plain["added_tokens"][0]
    vocab, other = model["vocab"], end | {"content": "fox<|end", "id": 300}
    chars = {"type": "WordLevel", "vocab": {chr(i + 70): i for i in range(299)}, "unk_token": "?"}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("300 char", {"normalizer": {"type": "NFC"}}),
        ("300 char", {"model": model | {"vocab": vocab | {"a": vocab["b"], "b": vocab["a"]}}}),
        ("token 'more'", {"model": model | {"vocab": vocab | {"more": 300}}}),
        ("token 'a'", {"added_tokens": [end, end | {"content": "a", "id": vocab["a"]}]}),
        ("token '<pad>'", {"added_tokens": [end | {"content": "<pad>"}], "model": chars}),
        ("token '<|endoftext|>'", {"added_tokens": [end, other | {"normalized": True}]}),
        ("token '<|endoftext|>'", {"added_tokens": [end | {"lstrip": True}]}),
    ]
    for named, fields in changes:
        TOKENS.write_text(json.dumps(plain | fields))
        line = error(TOKENS)
        assert f"{TOKENS} is not supported: " in line and named in line
    TOKENS.write_text(json.dumps(plain | {"added_tokens": [end | {"content": "\ud800"}]}))
    assert f"{TOKENS} is damaged" in error(TOKENS)


def test_malformed_contents_of_a_checkpoint_are_rejected(error: Error) -> None:
    plain = torch.load(CKPT, weights_only=True)
    damaged: list[Any] = [plain | {"more": Bomb()}, {"model_args": SIZES}]
    damaged.append(plain | {"model": plain["model"] | {"transformer.wpe.weight": "x"}})
    damaged.append(plain | {"model_args": SIZES | {"vocab_size": None}})
    save_meta("nanoGPT/elsewhere/meta.pkl")
    damaged += [plain | {"config": it} for it in ({}, {"dataset": "../elsewhere"})]
    for contents in damaged:
        torch.save(contents, CKPT)
        assert str(CKPT) in (line := error(CKPT)) or "--tokenizer meta.pkl" in line
    CKPT.write_bytes(pickle.dumps(Bomb()))
    assert "(UnpicklingError)" in error(CKPT)  # not a warning of PyTorch's
    torch.save(plain, CKPT)
    good = dict(enumerate(CHARS))
    metas: list[Any] = [{}, {"itos": good, "more": Bomb()}]
    wrong = (CHARS[:-1], good | {3: "ab"}, good | {3: CHARS[4]})
    for meta in (*metas, *({"itos": itos} for itos in wrong)):
        META.write_bytes(pickle.dumps(meta))
        assert f"{META} is damaged" in error(META)
