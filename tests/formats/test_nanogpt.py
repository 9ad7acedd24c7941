"""A checkpoint of nanoGPT is a run here: the same model, by nanoGPT's formulas, and the same
characters."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import convert
import sample
from data.bpe import BPETokenizer
from data.tokenizer import CharTokenizer
from formats.nanogpt import read_nanogpt
from model.gpt import GPT
from run.checkpoint import SavedRun, open_run
from tests.formats.models import LINES, save_tokenizer

CHARS = "\t\n !'abcdefghijklmnopqrstuvwxyzé"
SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 18, "block_size": 20, "vocab_size": len(CHARS)}


def weights_of(args: dict[str, Any], bias: bool) -> dict[str, Tensor]:
    """nanoGPT's state_dict, random."""
    torch.manual_seed(11)
    C, V, T = args["n_embd"], args["vocab_size"], args["block_size"]
    shapes: dict[str, tuple[int, ...]] = {"wte": (V, C), "wpe": (T, C), "ln_f": (C,)}
    for i in range(args["n_layer"]):
        shapes |= {
            f"h.{i}.ln_1": (C,),
            f"h.{i}.attn.c_attn": (3 * C, C),
            f"h.{i}.attn.c_proj": (C, C),
            f"h.{i}.ln_2": (C,),
            f"h.{i}.mlp.c_fc": (4 * C, C),
            f"h.{i}.mlp.c_proj": (C, 4 * C),
        }
    made = {}
    for name, shape in shapes.items():
        made[f"transformer.{name}.weight"] = torch.randn(shape) * 0.3
        if bias and name not in ("wte", "wpe"):
            made[f"transformer.{name}.bias"] = torch.randn(shape[0]) * 0.3
    return made | {"lm_head.weight": made["transformer.wte.weight"]}


def logits_of(args: dict[str, Any], weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """nanoGPT's forward pass in float64."""
    w = {name.removeprefix("transformer."): t.double() for name, t in weights.items()}
    C, (B, T) = args["n_embd"], tokens.shape

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (C,), w[f"{name}.weight"], w.get(f"{name}.bias"), 1e-5)

    x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
    for i in range(args["n_layer"]):
        parts = linear(f"h.{i}.attn.c_attn", norm(f"h.{i}.ln_1", x)).split(C, dim=2)
        q, k, v = (p.view(B, T, args["n_head"], -1).transpose(1, 2) for p in parts)
        scores = q @ k.transpose(2, 3) / q.size(-1) ** 0.5
        scores = scores.masked_fill(torch.ones(T, T).tril() == 0, -torch.inf)
        x = x + linear(f"h.{i}.attn.c_proj", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        hidden = F.gelu(linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x)))
        x = x + linear(f"h.{i}.mlp.c_proj", hidden)
    return norm("ln_f", x) @ w["lm_head.weight"].t()


def save(
    args: dict[str, Any],
    weights: dict[str, Tensor],
    path: str = "nanoGPT/out/ckpt.pt",
    dataset: str = "shakespeare_char",
) -> None:
    """As its train.py does."""
    moments = {"step": torch.tensor(1.0), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    group = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True, "params": [0]}
    checkpoint = {
        "model": weights,
        "optimizer": {"state": {0: moments}, "param_groups": [group]},
        "model_args": args | {"dropout": 0.2},
        "iter_num": 250,
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": dataset, "learning_rate": 1e-3, "compile": True, "out_dir": "out"},
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, path)


def save_meta(path: str = "nanoGPT/data/shakespeare_char/meta.pkl", chars: str = CHARS) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    itos = dict(enumerate(chars))
    stoi = {char: i for i, char in itos.items()}
    meta = {"vocab_size": len(chars), "itos": itos, "stoi": stoi}
    Path(path).write_bytes(pickle.dumps(meta))


def check_logits(saved: SavedRun, args: dict[str, Any], weights: dict[str, Tensor]) -> None:
    tokens = torch.randint(args["vocab_size"], (2, args["block_size"]))
    expected = logits_of(args, weights, tokens)
    model: GPT = saved.model(torch.device("cpu")).double()
    assert (model(tokens) - expected).abs().max() < 1e-10 * expected.abs().max()


@pytest.mark.parametrize("prefix", ["", "_orig_mod."], ids=["plain", "compiled"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "none"])
def test_it_computes_the_same(
    workplace: Path, bias: bool, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = SIZES | {"bias": bias}
    weights = weights_of(args, bias)
    masks = {"transformer.h.1.attn.bias": torch.ones(1, 1, 20, 20).tril()}  # of old versions
    save(args, {f"{prefix}{n}": t for n, t in (weights | masks).items()})
    save_meta()
    assert convert.main(["import", "nanoGPT/out/ckpt.pt", "--run", "g"]) == 0
    out = capsys.readouterr().out
    assert f"model: 2 layers x 18 wide, 3 heads, context 20, {len(CHARS)} tokens, " in out
    found = re.search(r"largest: (\S+) in float32, (\S+) in float64\n", out)
    assert found is not None and float(found[1]) < 1e-4 and float(found[2]) < 1e-10
    saved = open_run(Path("runs/g"))
    check_logits(saved, args, weights)
    assert saved.tokenizer == CharTokenizer(CHARS)
    assert CHARS[saved.start_token] == "\n"
    config = saved.config
    assert config.model.bias == bias and config.model.activation == "gelu"
    assert config.data.source == "pydocs", "there is no text beside its meta.pkl"
    assert sample.main(["g", "--prompt=the man's", "--max_new_tokens=30"]) == 0


def test_what_was_trained_on_is_what_it_is_studied_on(workplace: Path) -> None:
    save(SIZES, weights_of(SIZES, True))
    save_meta()
    text = Path("nanoGPT/data/shakespeare_char/input.txt")
    text.write_text("the text\n" * 40)
    assert convert.main(["import", "nanoGPT/out/ckpt.pt", "--run", "g"]) == 0
    assert open_run(Path("runs/g")).config.data.source == str(text.resolve())


def test_characters_from_elsewhere(workplace: Path) -> None:
    """And one without a newline starts at its first."""
    chars = CHARS.replace("\n", "X")
    save(SIZES, weights_of(SIZES, True), "ckpt.pt", dataset="absent")
    save_meta("kept/meta.pkl", chars)
    assert convert.main(["import", "ckpt.pt", "--run", "g", "--tokenizer", "kept/meta.pkl"]) == 0
    saved = open_run(Path("runs/g"))
    assert saved.tokenizer == CharTokenizer(chars) and saved.start_token == 0


@pytest.mark.parametrize("V", [300, 304])
def test_sub_words_in_a_vocabulary_that_may_be_padded(workplace: Path, V: int) -> None:
    """It starts where GPT-2's texts do, at <|endoftext|>, and not at a row that pads."""
    args = SIZES | {"vocab_size": V}
    weights = weights_of(args, True)
    save(args, weights, "ckpt.pt", dataset="openwebtext")
    Path("tokens").mkdir()
    save_tokenizer(Path("tokens"))
    assert convert.main(["import", "ckpt.pt", "--run", "g", "--tokenizer", "tokens"]) == 0
    saved = open_run(Path("runs/g"))
    check_logits(saved, args, weights)
    assert isinstance(saved.tokenizer, BPETokenizer) and saved.tokenizer.vocab_size == V
    assert saved.tokenizer.decode([299]) == "<|endoftext|>"
    assert saved.tokenizer.decode(saved.tokenizer.encode(LINES).tolist()) == LINES
    assert saved.start_token == 299
    assert sample.main(["g", "--max_new_tokens=5"]) == 0


def test_without_transformers_it_is_read_all_the_same(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    weights = weights_of(SIZES, True)
    save(SIZES, weights)
    save_meta()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert read_nanogpt(Path("nanoGPT/out/ckpt.pt")).original is None
    assert convert.main(["import", "nanoGPT/out/ckpt.pt", "--run", "g"]) == 0
    check_logits(open_run(Path("runs/g")), SIZES, weights)
