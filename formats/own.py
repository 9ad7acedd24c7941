"""A GPT that somebody wrote, live or as saved weights: that of Karpathy's lecture, nanoGPT's,
minGPT's, or a GPT-2 of transformers, recognized by the names and shapes of its tensors."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError, reading
from data.tokenizer import CharTokenizer, Tokenizer
from formats.imported import TOLERANCE, Imported, difference, start_of
from formats.names import LECTURE, MASKS, MINGPT, NANOGPT, TRANSFORMERS, Format, short
from formats.nanogpt import load_plain
from formats.tokenizers import read_tokenizer, tokenizer_of
from model.layers import ACTIVATIONS, GATED


def open_module(module: nn.Module, text: str, tokenizer: Any, n_head: int | None) -> Imported:
    """Make a model of a live one: it computes the same logits, or is rejected.

    Args:
        tokenizer: ours, a folder with a tokenizer.json, or one of transformers; None for the
            characters of the text in order.
        n_head: if no part of the module has an attribute `n_head` or `num_heads`.

    Raises:
        UserError: for a module that is not recognized, or computes something else.
    """
    where = Path(type(module).__name__)
    with reading(where, "cannot be opened"):
        for part in module.modules():
            n_head = n_head or getattr(part, "n_head", None) or getattr(part, "num_heads", None)
        format, plain, tensors = recognize(module.state_dict(), where, n_head)
        best, model, activation = torch.inf, None, ""
        for name in ACTIVATIONS.keys() - GATED:
            made = format.import_model(plain | {"activation": name}, tensors, where)
            if (apart := difference(made, module)) < best:
                best, model, activation = apart, made, name
        found = f"difference of the logits, as a fraction of the largest, {best:.1e}"
        if model is None or best > TOLERANCE:
            raise UserError(
                f"{where} has the weights of {format.name}, but computes others: {found}"
            )
        print(f"{where} is {format.name} with {activation}; {found}")
        V = plain["vocab_size"]
        if tokenizer is None:
            tokenizer = characters(text, V)
        elif isinstance(tokenizer, str | Path):
            tokenizer = read_tokenizer(Path(tokenizer), V)
        elif not isinstance(tokenizer, Tokenizer):
            tokenizer = tokenizer_of(getattr(tokenizer, "backend_tokenizer", tokenizer), V)
    return Imported(model, tokenizer, start_of(tokenizer), "pydocs", module)


def characters(text: str, V: int) -> CharTokenizer:
    """Return the tokenizer of sorted(set(text)).

    Raises:
        UserError: unless there are V of them.
    """
    chars = "".join(sorted(set(text)))
    if len(chars) != V:
        raise UserError(
            f"the text has {len(chars)} distinct characters, but the model's vocabulary is {V}; "
            f"give the whole text that it was trained on, or its tokenizer"
        )
    return CharTokenizer(chars)


def recognize(
    tensors: Mapping[str, Tensor], where: Path, n_head: int | None
) -> tuple[Format, dict[str, Any], dict[str, Tensor]]:
    """Return the format that has these tensors, the config that their shapes tell, and the tensors
    with all heads of a layer joined.

    Raises:
        UserError: naming the first tensor that no format has, or that is missing.
    """
    parts: dict[str, list[Tensor]] = {}
    # By the numbers in their names: head 10 comes after head 2.
    for name in sorted(tensors, key=lambda name: [int(i) for i in re.findall(r"\d+", name)]):
        if not name.endswith(MASKS):
            joined = re.sub(r"\.heads\.\d+\.", ".heads.*.", short(name))
            parts.setdefault(joined, []).append(tensors[name].detach().cpu())
    left = {name: torch.cat(each) for name, each in parts.items()}
    format = min((LECTURE, NANOGPT), key=lambda format: len(format.unknown(left)))
    for name in format.unknown(left):
        raise UserError(f"{where}: {name} has no place in {format.name}, which it resembles most")
    needed = [f"{short(n)}.weight" for n, ours in format.rows(1) if ours != ["head"]]
    for name in needed:
        if name not in left:
            raise UserError(f"{where}: {name} is missing, so it is not {format.name}")
    embedding, positions = left[needed[0]], left[needed[1]]
    (V, C), head = embedding.shape, left.get("lm_head.weight", embedding)
    if format is NANOGPT and left["h.0.mlp.c_fc.weight"].size(0) == C:
        format = TRANSFORMERS
    elif format is NANOGPT and not torch.equal(head, embedding):
        format = MINGPT
    n_head = max([len(each) for name, each in parts.items() if "*" in name], default=n_head)
    if n_head is None:
        raise UserError(f"{where}: the weights do not tell the number of heads; give n_head")
    plain = {"n_head": n_head, "n_embd": C, "vocab_size": V, "block_size": len(positions)}
    layers = {name.split(".")[1] for name in left if re.search(r"\.\d+\.", name)}
    plain |= {"n_layer": len(layers), "tie_embeddings": torch.equal(head, embedding)}
    return format, plain, left


def read_weights(path: Path, chars: str, n_head: int | None, activation: str | None) -> Imported:
    """Make a model of a saved state_dict. What it does not tell is assumed, and a file computes no
    logits to compare with.

    Args:
        chars: the file whose characters, in order, are the vocabulary.
        activation: if omitted, that of the format.
    """
    with reading(path):
        format, plain, tensors = recognize(load_plain(path), path, n_head)
        plain["activation"] = activation or format.defaults["activation"]
        model = format.import_model(plain, tensors, path)
    with open(chars, encoding="utf-8") as file, reading(chars):
        tokenizer = characters(file.read(), plain["vocab_size"])
    print(f"{path} is {format.name}, with {plain['activation']} and {plain['n_head']} heads")
    return Imported(model, tokenizer, start_of(tokenizer), str(Path(chars).resolve()), None)
