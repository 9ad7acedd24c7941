"""Your own GPT as a module: the GPT of Karpathy's lecture, nanoGPT or minGPT,
or a GPT-2 of transformers, recognized by the names and shapes of its tensors."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError, reading
from data.tokenizer import CharTokenizer
from formats.imported import Imported, compare_logits, difference
from formats.names import LECTURE, MASKS, MINGPT, NANOGPT, TRANSFORMERS, Format, short
from formats.tokenizers import tokenizer_of
from model.layers import ACTIVATIONS


def open_module(modules: Sequence[nn.Module], text: str, tokenizer: Any) -> Imported:
    """Convert a module, and check that the result computes the same logits.

    Args:
        modules: the module at increasing steps, or alone.
        tokenizer: one of transformers or tokenizers; None for the sorted characters of the text.

    Raises:
        UserError: for a module that is not recognized, or computes different logits.
    """
    module = modules[-1]
    where = Path(type(module).__name__)
    with reading(where, "is not a supported module"):
        if any(weight.dtype.itemsize < 4 for weight in module.parameters()):
            raise UserError(f"{where} is not in float32; call model.float() first")
        format, plain, heads, tensors = recognize(module.state_dict(), where)
        for part in module.modules():
            told = getattr(part, "n_head", None) or getattr(part, "num_heads", None)
            heads = [told] if told else heads
        plain["bias"] = len(modules) > 1  # at step 0, all may be zero
        plain = min(
            variants(plain, n_head=heads, activation=ACTIVATIONS, scores=format.scores),
            key=lambda plain: difference(format.import_model(plain, tensors, where), module),
        )
        models = [
            format.import_model(plain, recognize(each.state_dict(), where)[3], where)
            for each in modules
        ]
        tried = f"; tried {', '.join(ACTIVATIONS)}; scores * {', '.join(format.scores)}"
        *_, compared = [compare_logits(*pair, tried) for pair in zip(models, modules, strict=True)]
        print(
            f"{where} is {format.name} with {plain['activation']}, scores * {plain['scores']}; "
            f"{compared}"
        )
        V, encoder = plain["vocab_size"], getattr(tokenizer, "backend_tokenizer", tokenizer)
        known = tokenizer_of(encoder, V) if encoder else characters(text, V)
    return Imported(models.pop(), known, known.start_token(), "pydocs", module, models)


def variants(plain: dict[str, Any], **options: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the config with each combination of the options."""
    return [plain | dict(zip(options, each, strict=True)) for each in product(*options.values())]


def characters(text: str, V: int) -> CharTokenizer:
    """Return the tokenizer of sorted(set(text)).

    Raises:
        UserError: if the text does not have V distinct characters.
    """
    chars = "".join(sorted(set(text)))
    if len(chars) != V:
        raise UserError(
            f"the text has {len(chars)} distinct characters, but the model's vocabulary has {V}; "
            f"pass its whole training text, or its tokenizer"
        )
    return CharTokenizer(chars)


def recognize(
    tensors: Mapping[str, Tensor], where: Path
) -> tuple[Format, dict[str, Any], list[int], dict[str, Tensor]]:
    """Return the format that has these tensors, the config that follows from their shapes, the
    possible numbers of heads, and the tensors with all heads of a layer joined.

    Raises:
        UserError: naming the first tensor that is unknown or missing.
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
        raise UserError(
            f"{where} is not supported, only nanoGPT, minGPT, GPT2LMHeadModel and the lecture's "
            f"GPT; {format.name}, the closest, has no {name}"
        )
    needed = [f"{short(n)}.weight" for n, ours in format.rows(1) if ours != ["head"]]
    for name in needed:
        if name not in left:
            raise UserError(f"{where}: {name} is missing, so it is not {format.name}")
    embedding, positions = left[needed[0]], left[needed[1]]
    (V, C), tied = embedding.shape, torch.equal(left.get("lm_head.weight", embedding), embedding)
    if format is NANOGPT and left["h.0.mlp.c_fc.weight"].size(0) == C:
        format = TRANSFORMERS
    elif format is NANOGPT and not tied:
        format = MINGPT
    heads = [len(each) for name, each in parts.items() if "*" in name][:1]
    heads = heads or [H for H in range(1, C // 4 + 1) if C % H == 0]
    plain = {"n_embd": C, "vocab_size": V, "block_size": len(positions)}
    layers = {name.split(".")[1] for name in left if re.search(r"\.\d+\.", name)}
    plain |= {"n_layer": len(layers), "tie_embeddings": tied}
    return format, plain, heads, left
