"""A checkpoint of nanoGPT is a run here: the same model, by nanoGPT's formulas, and the same
characters."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import convert
from data.tokenizer import BPETokenizer, CharTokenizer
from run.checkpoint import open_run
from tests.formats.models import difference, make_theirs, save_tokenizer

CHARS = "\t\n !'abcdefghijklmnopqrstuvwxyzé"
SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 18, "block_size": 20, "vocab_size": len(CHARS)}


def original(args: dict[str, Any], bias: bool = True) -> Any:
    """The same model as the library computes it; nanoGPT leaves out the biases that are zero."""
    theirs = make_theirs(activation_function="gelu", n_positions=args["block_size"], **args)
    for name, weight in theirs.named_parameters():
        weight.data *= bias or not name.endswith(".bias")
    return theirs


def weights_of(args: dict[str, Any], bias: bool = True) -> dict[str, Tensor]:
    """nanoGPT's state_dict: that of GPT-2 without transposed matrices."""
    return {
        name: tensor.t() if ".c_" in name and tensor.dim() == 2 else tensor
        for name, tensor in original(args, bias).state_dict().items()
        if bias or not name.endswith(".bias")
    }


def save(
    args: dict[str, Any],
    weights: dict[str, Tensor],
    path: str = "nanoGPT/out/ckpt.pt",
    dataset: str = "shakespeare_char",
) -> None:
    """As its train.py does."""
    checkpoint = {
        "model": weights,
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
    meta = {"vocab_size": len(chars), "itos": itos, "stoi": stoi}
    Path(path).write_bytes(pickle.dumps(meta))


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(("bias", "prefix"), [(True, ""), (False, "_orig_mod.")])
def test_it_computes_the_same(
    workplace: Path,
    bias: bool,
    prefix: str,
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With biases or without, compiled or not, with transformers or without."""
    args = SIZES | {"bias": bias}
    theirs = original(args, bias)
    masks = {"transformer.h.1.attn.bias": torch.ones(1, 1, 20, 20).tril()}  # of old versions
    save(args, {f"{prefix}{n}": t for n, t in (weights_of(args, bias) | masks).items()})
    save_meta()
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    assert convert.main(["import", "nanoGPT/out/ckpt.pt", "--run", "g"]) == 0
    out = capsys.readouterr().out
    compared = "relative to the largest logit: "
    assert (compared if installed else "logits not compared: transformers is not") in out
    saved = open_run(Path("runs/g"))
    assert difference(saved.model(), theirs) < 1e-5
    assert saved.tokenizer == CharTokenizer(CHARS) and CHARS[saved.start_token] == "\n"
    assert saved.config.model.bias == bias
    assert saved.config.data.source == "pydocs"  # there is no text beside its meta.pkl


def test_characters_from_elsewhere_and_the_text_beside_them(workplace: Path) -> None:
    """A model without a newline starts at its first character."""
    chars = CHARS.replace("\n", "X")
    save(SIZES, weights_of(SIZES), "ckpt.pt", dataset="absent")
    save_meta("kept/meta.pkl", chars)
    text = Path("kept/input.txt")
    text.write_text("the text\n" * 40)
    assert convert.main(["import", "ckpt.pt", "--run", "g", "--tokenizer", "kept/meta.pkl"]) == 0
    saved = open_run(Path("runs/g"))
    assert saved.tokenizer == CharTokenizer(chars) and saved.start_token == 0
    assert saved.config.data.source == str(text.resolve())


@pytest.mark.parametrize("V", [300, 304])
def test_subwords_in_a_vocabulary_that_may_be_padded(workplace: Path, V: int) -> None:
    """It starts where GPT-2's texts do, at <|endoftext|>, and not at a row that pads."""
    args = SIZES | {"vocab_size": V}
    save(args, weights_of(args), "ckpt.pt", dataset="openwebtext")
    Path("tokens").mkdir()
    save_tokenizer(Path("tokens"))
    assert convert.main(["import", "ckpt.pt", "--run", "g", "--tokenizer", "tokens"]) == 0
    saved = open_run(Path("runs/g"))
    assert difference(saved.model(), original(args)) < 1e-5
    assert isinstance(saved.tokenizer, BPETokenizer) and saved.tokenizer.vocab_size == V
    assert saved.tokenizer.decode([299]) == "<|endoftext|>" and saved.start_token == 299
