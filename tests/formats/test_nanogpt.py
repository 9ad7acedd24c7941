"""Imported nanoGPT checkpoints: same logits and tokens."""

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
from tests.formats.models import difference, make_gpt2, save_tokenizer

CHARS = "\t\n !'abcdefghijklmnopqrstuvwxyzé"
SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 18, "block_size": 20, "vocab_size": len(CHARS)}


def original(args: dict[str, Any], bias: bool = True) -> Any:
    """Return the same model of transformers. Without `bias`, its biases are zero."""
    reference = make_gpt2(activation_function="gelu", n_positions=args["block_size"], **args)
    for name, weight in reference.named_parameters():
        weight.data *= bias or not name.endswith(".bias")
    return reference


def weights_of(args: dict[str, Any], bias: bool = True) -> dict[str, Tensor]:
    """Return nanoGPT's state_dict, which is GPT-2's with untransposed matrices."""
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
    """Save a checkpoint as nanoGPT's train.py does."""
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
def test_imported_checkpoint_matches_the_original(
    workplace: Path,
    bias: bool,
    prefix: str,
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """torch.compile adds the prefix; transformers is optional."""
    args = SIZES | {"bias": bias}
    reference = original(args, bias)
    masks = {"transformer.h.1.attn.bias": torch.ones(1, 1, 20, 20).tril()}  # in old versions
    save(args, {f"{prefix}{n}": t for n, t in (weights_of(args, bias) | masks).items()})
    save_meta()
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    assert convert.main(["import", "nanoGPT/out/ckpt.pt", "--run", "g"]) == 0
    out = capsys.readouterr().out
    compared = "relative to the largest logit: "
    assert (compared if installed else "logits not compared: transformers is not") in out
    saved = open_run(Path("runs/g"))
    assert difference(saved.model(), reference) < 1e-5
    assert saved.tokenizer == CharTokenizer(CHARS) and CHARS[saved.start_token] == "\n"
    assert saved.config.model.bias == bias
    assert saved.config.data.source == "pydocs"  # no input.txt next to meta.pkl


def test_tokenizer_option_finds_characters_and_text(workplace: Path) -> None:
    """Without a newline in the vocabulary, generation starts at the first character."""
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
def test_bpe_vocabulary_may_be_padded(workplace: Path, V: int) -> None:
    """Generation starts at <|endoftext|>, not at a row of the padding."""
    args = SIZES | {"vocab_size": V}
    save(args, weights_of(args), "ckpt.pt", dataset="openwebtext")
    Path("tokens").mkdir()
    save_tokenizer(Path("tokens"))
    assert convert.main(["import", "ckpt.pt", "--run", "g", "--tokenizer", "tokens"]) == 0
    saved = open_run(Path("runs/g"))
    assert difference(saved.model(), original(args)) < 1e-5
    assert isinstance(saved.tokenizer, BPETokenizer) and saved.tokenizer.vocab_size == V
    assert saved.tokenizer.decode([299]) == "<|endoftext|>" and saved.start_token == 299
