"""Runs of random weights with each kind of tokens, and the library `transformers` beside them."""

import dataclasses
import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.bpe import BPETokenizer, train_bpe
from model.gpt import GPT
from run.checkpoint import load_checkpoint, save_checkpoint
from tests.conftest import make_run

LINES = "the man said: there's a tree on the hill, and it's not the man's\nwhose, they asked, été\n"
TEXT = LINES * 9
# What goes wrong in tokenizers: combining marks, emoji of several code points, line ends, NUL, runs
# of spaces, spaces before punctuation, what looks like a special token, and scripts without spaces.
ODD = [
    "",
    "\n",
    " ",
    "e\u0301 é \u1100\u1161",
    "👩\u200d👩\u200d👧 🇫🇷 ☕\ufe0f",
    "a\r\nb\rc\n\n\nd\n  e",
    "nul\0nul",
    "  two   three    \t\ttabs ",
    "<|endoftext|>",
    "a<|endoftext|>\nb",
    "it 's n't , . ! don't I'LL",
    "\ufeffBOM\u2028line\u2029\x85\x0b\x0c\x1c end\u180e\u3000日本語 שלום",
    "12 345 6.7e8 ²½ _x_ ---",
]
CHARS = "".join(sorted(set("".join(ODD) + "the man")))
# Wholes, and bytes that are no character or half of one.
HALVES = [b"\xff", b"a\xc3", b"\xe6\x97", b"\xe6\x97x\xf0\x9f\x98", b"\x80\x80a", b"\xed\xa0\x80"]

PERSIMMON: list[dict[str, Any]] = [
    {},
    {"qk_norm": False, "activation": "gelu", "tie_embeddings": True, "bias": True},
    {"activation": "gelu_tanh", "bias": True, "n_head": 1},
]
GPT2: list[dict[str, Any]] = [
    {"activation": "gelu_tanh", "tie_embeddings": True, "bias": True, "n_head": 4},
    {"activation": "gelu"},
    {"activation": "relu2", "bias": True},
]
GPT2 = [{"positions": "learned", "qk_norm": False} | choices for choices in GPT2]
LLAMA: list[dict[str, Any]] = [{}, {"bias": True, "n_head": 4}, {"tie_embeddings": True}]
LLAMA = [{"norm": "rmsnorm", "activation": "swiglu", "qk_norm": False} | c for c in LLAMA]
CLASSES = {"Persimmon": PERSIMMON, "GPT2": GPT2, "Llama": LLAMA}


@functools.cache
def bpe() -> BPETokenizer:
    """Some sub-words, and GPT-2's special token as the last."""
    trained = train_bpe([TEXT], 299)
    assert trained.vocab_size == 299
    return BPETokenizer(trained.merges, ("<|endoftext|>",))


def make_run_of(run: Path, tokens: str, **choices: Any) -> Path:
    """`make_run`, also for sub-words."""
    choices = {"n_layer": 2, "block_size": 16} | choices
    if tokens != "bpe":
        return make_run(run, CHARS if tokens == "char" else None, **choices)
    make_run(run, "".join(map(chr, range(0x4E00, 0x4E00 + bpe().vocab_size))), **choices)
    for path in run.glob("*.safetensors"):
        header, tensors = load_checkpoint(path)
        data = dataclasses.replace(header.config.data, tokenizer="bpe", vocab_size=bpe().vocab_size)
        config = dataclasses.replace(header.config, data=data)
        header = dataclasses.replace(header, config=config, tokenizer=bpe().to_dict())
        save_checkpoint(path, tensors, header)
    return run


def transformers() -> Any:
    """The library, which says nothing and fetches nothing."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers as library

    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


def load(folder: Path) -> Any:
    """The model of a folder as the library computes it, to the last bit of float64: it computes
    rotations and Llama's norm in float32 otherwise."""
    model = transformers().AutoModelForCausalLM.from_pretrained(folder).eval().double()
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = functools.partial(rms_norm, module)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = functools.partial(rotations, model.config)
    return model


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    return norm.weight * x / (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()


def rotations(config: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles, rounded to float32 as ours are."""
    D = config.hidden_size // config.num_attention_heads
    theta = config.rope_parameters["rope_theta"]
    frequencies = [theta ** (-2 * i / D) for i in range(D // 2)]
    angles = position_ids[..., None] * torch.tensor(frequencies * 2, dtype=torch.float64)
    return angles.cos().float().double(), angles.sin().float().double()


@torch.no_grad()
def difference(ours: GPT, theirs: Any) -> float:
    """The largest difference of the logits in float64, as a fraction of the largest."""
    V, T = ours.token_embedding.num_embeddings, ours.config.block_size
    tokens = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(7))
    logits, others = ours.double()(tokens), theirs.double()(tokens).logits
    assert logits.abs().max() > 1e-3, "a model that says nothing is like any other"
    return float((logits - others).abs().max() / logits.abs().max())


def make_theirs(kind: str, **fields: Any) -> Any:
    """A model made by the library, small and random, biases and norms too; but for those of
    Persimmon's QK-norm, which ours has not."""
    library = transformers()
    config = getattr(library, f"{kind}Config")(vocab_size=bpe().vocab_size, **fields)
    torch.manual_seed(5)
    model = library.AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        std = 0.0 if re.search(r"self_attn\.[qk]_layernorm\.bias$", name) else 0.3
        torch.nn.init.normal_(weight, 0.0, std)
    return model


def save_tokenizer(folder: Path, form: str = "tokenizer.json") -> None:
    """GPT-2's tokenizer of another text, made by the library `tokenizers`: as one file of today's
    form or of GPT-2's own on the hub, or as two."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=299, initial_alphabet=alphabet, show_progress=False)
    encoder.train_from_iterator([TEXT[::-1] + TEXT.upper()], trainer)
    assert encoder.get_vocab_size() == 299
    encoder.add_special_tokens(["<|endoftext|>"])
    plain = json.loads(encoder.to_str())
    model, merges = plain["model"], [" ".join(pair) for pair in plain["model"]["merges"]]
    vocab = model["vocab"] | {"<|endoftext|>": len(model["vocab"])}
    if form == "tokenizer.json":
        encoder.save(str(folder / form))
    elif form == "hub":
        old = ("dropout", "unk_token", "fuse_unk")
        plain["model"] = {name: model[name] for name in old} | {"vocab": vocab, "merges": merges}
        plain["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
        del plain["pre_tokenizer"]["use_regex"]
        (folder / "tokenizer.json").write_text(json.dumps(plain))
    else:
        (folder / "vocab.json").write_text(json.dumps(vocab))
        lines = ["#version: 0.2", *merges, ""]
        (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; `...` takes one away."""
    plain = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: v for name, v in plain.items() if v is not ...}))
