"""Imported nanoGPT checkpoints: same logits and tokens."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data.tokenizer import BPETokenizer, CharTokenizer
from formats.__main__ import main
from tests.formats.models import difference, make_gpt2, save_tokenizer
from training.checkpoint import open_run

CHARS = "\t\n !'abcdefghijklmnopqrstuvwxyzé"
SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 18, "block_size": 20, "vocab_size": len(CHARS)}


def original(args: dict[str, Any] = SIZES) -> Any:
    """Return the same model of transformers."""
    return make_gpt2(activation_function="gelu", n_positions=args["block_size"], **args)


def weights_of(args: dict[str, Any] = SIZES) -> dict[str, Tensor]:
    """Return nanoGPT's state_dict, which is GPT-2's with untransposed matrices."""
    weights = original(args).state_dict()
    return {n: w.t() if ".c_" in n and w.dim() == 2 else w for n, w in weights.items()}


def save(
    path: str = "nanoGPT/out/ckpt.pt",
    dataset: str = "shakespeare_char",
    args: dict[str, Any] = SIZES,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Save a checkpoint as nanoGPT's train.py does."""
    checkpoint = {
        "model": weights or weights_of(args),
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1e-3}]},
        "model_args": args | {"dropout": 0.2},
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": dataset, "compile": True},
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, path)


def save_meta(path: str = "nanoGPT/data/shakespeare_char/meta.pkl", chars: str = CHARS) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    itos = dict(enumerate(chars))
    stoi = {char: i for i, char in itos.items()}
    Path(path).write_bytes(pickle.dumps({"vocab_size": len(chars), "itos": itos, "stoi": stoi}))


def test_checkpoint_without_biases_or_transformers_is_imported(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch.compile adds a prefix to the names, and old versions saved the causal masks."""
    reference, weights = original(), {"transformer.h.1.attn.bias": torch.ones(1, 1, 20, 20).tril()}
    for name, weight in weights_of().items():
        if not name.endswith(".bias"):
            weights[f"_orig_mod.{name}"] = weight
    for name, weight in reference.named_parameters():
        weight.data *= not name.endswith(".bias")
    save(args=SIZES | {"bias": False}, weights=weights)
    save_meta()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["import", "nanoGPT/out/ckpt.pt", "--run", "g"]) == 0
    assert "no other program compared the logits: transformers is not" in capsys.readouterr().out
    saved = open_run(Path("runs/g"))
    assert difference(saved.model(), reference) < 1e-5
    assert saved.tokenizer == CharTokenizer(CHARS) and CHARS[saved.start_token] == "\n"
    assert not saved.config.model.bias
    assert saved.config.data.tokenizer == "char"
    assert saved.config.data.source == "pydocs"  # no input.txt next to meta.pkl


def test_tokenizer_option_finds_characters_and_text(workplace: Path) -> None:
    """Without a newline in the vocabulary, generation starts at the first character."""
    chars = CHARS.replace("\n", "X")
    save("ckpt.pt", dataset="absent")
    save_meta("kept/meta.pkl", chars)
    text = Path("kept/input.txt")
    text.write_text("the text\n" * 40)
    assert main(["import", "ckpt.pt", "--run", "g", "--tokenizer", "kept/meta.pkl"]) == 0
    saved = open_run(Path("runs/g"))
    assert saved.tokenizer == CharTokenizer(chars) and saved.start_token == 0
    assert saved.config.data.source == str(text.resolve())


def test_bpe_vocabulary_may_be_padded(workplace: Path) -> None:
    """Generation starts at <|endoftext|>, not at a row of the padding."""
    args = SIZES | {"vocab_size": 304}
    save("ckpt.pt", args=args)
    save_tokenizer(Path())
    assert main(["import", "ckpt.pt", "--run", "g", "--tokenizer", "."]) == 0
    saved = open_run(Path("runs/g"))
    assert difference(saved.model(), original(args)) < 1e-5
    assert isinstance(saved.tokenizer, BPETokenizer) and saved.tokenizer.vocab_size == 304
    assert saved.tokenizer.decode([299]) == "<|endoftext|>" and saved.start_token == 299
