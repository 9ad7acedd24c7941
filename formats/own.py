"""Your own GPT as a module, recognized by the shapes of its weights and their order. The logits
decide what these leave open."""

import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError, as_user_error
from data.tokenizer import CharTokenizer
from formats.imported import TOLERANCE, Imported, compare_logits, difference, random_logits
from formats.names import OWN, short
from formats.tokenizers import tokenizer_of
from model.gpt import ACTIVATIONS

Parts = dict[str, dict[str, Tensor]]  # weight and perhaps bias, by the name of their module
# The places of the tables of tokens and positions; of queries, keys and values; of the two norms
Order = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
EXPECTED = (
    "expected embeddings of tokens (V, C) and positions (T, C), a list of layers, a norm (C) and, "
    "if it is not the embedding, a head (V, C); in a layer two norms (C), queries, keys and values "
    "(C, C), joined or not, or those of each head, their output (C, C), and an MLP (nC, C), (C, nC)"
)


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
    with as_user_error(where, "is not a supported module"):
        if any(weight.dtype.itemsize < 4 for weight in module.parameters()):
            raise UserError(f"{where} is not in float32; call model.float() first")
        layouts, plain = recognize(modules, where)
        models = [convert(each, plain, where) for each in layouts]
        tried = f"; tried {', '.join(ACTIVATIONS)}; scores * {', '.join(OWN.scores)}"
        *_, compared = [compare_logits(*pair, tried) for pair in zip(models, modules, strict=True)]
        print(f"{where} has {plain['activation']}, scores * {plain['scores']}; {compared}")
        V = models[-1].token_embedding.num_embeddings
        encoder = getattr(tokenizer, "backend_tokenizer", tokenizer)
        known = tokenizer_of(encoder, V) if encoder else characters(text, V)
    return Imported(models.pop(), known, known.start_token(), "pydocs", module, models)


def recognize(
    modules: Sequence[nn.Module], where: Path
) -> tuple[list[dict[str, Tensor]], dict[str, Any]]:
    """Return the weights of each module by the names of `GPT`, and what their shapes leave open of
    the config, so that the logits of the last module are as close as they can be."""
    module, found = modules[-1], [layouts_of(each) for each in modules]
    logits_of = functools.cache(functools.partial(random_logits, module))

    def closest(
        orders: Sequence[Order], plains: Sequence[dict[str, Any]], positions: int | None = None
    ) -> tuple[Order, dict[str, Any]]:
        """Return the first order that with one of the configs gives the logits at these
        positions, or the pair that comes closest."""
        best, failed = (math.inf, *next(product(orders, plains))), None
        for order in orders:
            for plain in plains:  # all, because two activations are similar
                try:
                    model = convert(found[-1][order], plain, where)
                    apart = difference(model, logits_of, positions)
                except Exception as error:  # of another vocabulary, for example
                    failed = failed or error
                else:
                    best = min(best, (apart, order, plain), key=lambda each: each[0])
            if best[0] < TOLERANCE:
                break
        if failed and best[0] == math.inf:
            raise failed
        return best[1:]

    C = next(iter(found[-1].values()))["token_embedding.weight"].size(-1)
    told = count_heads(module)
    heads = [told] if told else [H for H in range(1, C // 4 + 1) if C % H == 0]
    # At step 0, all biases may be zero.
    first = {"n_head": heads[0], "scores": "D**-0.5", "bias": len(modules) > 1}
    # The first position attends to itself alone, whatever its query and its key are.
    (tables, (q, k, v), norms), plain = closest(
        [order for order in found[-1] if order[1][0] < order[1][1]],
        [first | {"activation": activation} for activation in ACTIVATIONS],
        positions=1,
    )
    order, plain = closest(
        [(tables, qkv, norms) for qkv in ((q, k, v), (k, q, v))],
        [plain | {"n_head": H, "scores": each} for H, each in product(heads, OWN.scores)],
    )
    return [each[order] for each in found], plain


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


def count_heads(module: nn.Module) -> int | None:
    """Return the number of heads that a part of the module names or lists, if there is one."""
    for name, part in module.named_modules():
        if name.endswith("heads") and isinstance(part, nn.ModuleList):
            return len(part)
        for key, value in vars(part).items():
            if re.fullmatch(r"(?i)(n|num)?_?heads?|h", key) and type(value) is int:
                return value
    return None


def convert(tensors: dict[str, Tensor], plain: dict[str, Any], where: Path) -> Any:
    """Make a GPT from a layout, whose shapes say the rest of the config."""
    (V, C), T = tensors["token_embedding.weight"].shape, len(tensors["position_embedding.weight"])
    plain = plain | {"vocab_size": V, "n_embd": C, "block_size": T}
    plain["mlp_ratio"] = len(tensors["blocks.0.mlp.up.weight"]) // C
    plain["n_layer"] = sum(name.endswith("attn_norm.weight") for name in tensors)
    return OWN.import_model(plain, tensors, where)


def layouts_of(module: nn.Module) -> dict[Order, dict[str, Tensor]]:
    """Return the weights by the names of `GPT`, in each order that their shapes allow, the most
    likely first.

    Raises:
        ValueError: if they do not allow any.
    """
    outer, *layers = parts_of(module)
    made = {}
    for tables, qkv, norms in product(*map(permutations, (range(2), range(3), range(2)))):
        parts = name_outer(outer, tables)
        token = parts["token_embedding"]
        if parts.get("head", token)["weight"].shape != token["weight"].shape:
            continue
        for i, layer in enumerate(layers):
            named = name_layer(layer, qkv, norms)
            parts |= {f"blocks.{i}.{name}": part for name, part in named.items()}
        made[tables, qkv, norms] = {
            f"{name}.{kind}": x for name, part in parts.items() for kind, x in part.items()
        }
    if not (layers and made):
        raise unexpected(outer, "outside the layers")
    return made


def parts_of(module: nn.Module) -> list[Parts]:
    """Return the parts outside the layers, and those of each layer, in order. Those of a layer's
    heads, which have C rows together, are joined."""
    weights = {
        short(name): weight.detach().cpu()
        for name, weight in module.named_parameters(remove_duplicate=False)
    }
    C = next((weight.size(-1) for weight in weights.values() if weight.dim() > 1), 0)
    places = {name: re.fullmatch(r"(.*?)\.(\d+)\.(.*)", name) for name in weights}
    lists = Counter(place[1] for place in places.values() if place).most_common(1)
    joined: dict[tuple[str, str], list[tuple[str, Tensor]]] = {}
    for name, weight in weights.items():
        place = places[name]
        i, rest = (place[2], place[3]) if place and place[1] == lists[0][0] else ("", name)
        joined.setdefault((i, re.sub(r"\b\d+\b", "*", rest)), []).append((rest, weight))
    found: dict[str, Parts] = {"": {}}
    for (i, name), each in joined.items():
        rows = torch.cat([x for _, x in each]) if len({x.shape for _, x in each}) == 1 else None
        whole = [(name, rows)] if rows is not None and len(rows) == C else each
        for rest, weight in whole:
            part = re.sub(r"[._](weight|bias)$", "", rest)
            kind = "bias" if rest.endswith("bias") else "weight"
            found.setdefault(i, {}).setdefault(part, {})[kind] = weight
    return [*found.values()]


def name_outer(parts: Parts, order: tuple[int, ...]) -> Parts:
    """Return the parts outside the layers by the names of `GPT`."""
    norms, tables = by_dimensions(parts)
    if len(norms) != 1 or len(tables) not in (2, 3):
        raise unexpected(parts, "outside the layers")
    names = [("token_embedding", "position_embedding")[i] for i in order]
    named = dict(zip([*names, "head"], tables, strict=False))
    named["position_embedding"] = {"weight": named["position_embedding"]["weight"].flatten(0, -2)}
    return named | {"final_norm": norms[0]}


def name_layer(parts: Parts, qkv: tuple[int, ...], order: tuple[int, ...]) -> Parts:
    """Return the parts of a layer by the names of `GPT`.

    Args:
        qkv: the places of queries, keys and values.
        order: the places of the norms.
    """
    norms, matrices = by_dimensions(parts)
    C = len(norms[0]["weight"]) if norms else 0
    square = [part for part in matrices if part["weight"].shape == (C, C)]
    joined = [part for part in matrices if {*part["weight"].shape} == {C, 3 * C}][
        : len(square) == 1
    ]
    mlp = [part for part in matrices if not any(part is other for other in square + joined)]
    if (len(norms), len(square), len(joined), len(mlp)) not in ((2, 4, 0, 2), (2, 1, 1, 2)):
        raise unexpected(parts, "in a layer")
    if len(mlp[0]["weight"]) == C:  # a row for each input, as in GPT-2
        for part in matrices:
            part["weight"] = part["weight"].T
    thirds = [
        {kind: x.chunk(3)[i] for kind, x in part.items()} for part in joined for i in range(3)
    ]
    projections = thirds or square[:3]
    names = dict(zip(("query", "key", "value"), (projections[i] for i in qkv), strict=True))
    return {
        **{f"attn.{name}": part for name, part in names.items()},
        "attn.out": square[-1],
        "mlp.up": mlp[0],
        "mlp.down": mlp[1],
        "attn_norm": norms[order[0]],
        "mlp_norm": norms[order[1]],
    }


def by_dimensions(parts: Parts) -> tuple[list[Any], list[Any]]:
    """Return the parts whose weight is a vector, and the others."""
    parts = {name: dict(part) for name, part in parts.items()}
    vectors = [part for part in parts.values() if part["weight"].dim() == 1]
    return vectors, [part for part in parts.values() if part["weight"].dim() > 1]


def unexpected(parts: Parts, where: str) -> ValueError:
    shapes = {name: (*part["weight"].shape,) for name, part in parts.items()}
    return ValueError(f"{EXPECTED}; {where}, it has {shapes}")
