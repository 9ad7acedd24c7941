"""One attention layer in steps, each computed from the one before it: name, formula, shape, value.

`trace` prints them, `verify` holds the model to them, and the variants change one of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.attention import MultiHeadAttention, causal_mask


@dataclass(frozen=True)
class Step:
    """One line of the table."""

    formula: str
    letters: str
    """The shape in letters; its numbers are the tensor's."""

    value: Tensor
    hidden: Tensor | None = None
    """Where a cell is masked, of the shape of the value; such cells count in no statistic."""


def walk(
    attn: MultiHeadAttention,
    x_BTC: Tensor,
    *,
    causal: bool = True,
    scaled: bool = True,
    masked_by: float = -math.inf,
) -> dict[str, Step]:
    """The steps of self-attention by their names, from x (B, T, C) to the output (B, T, C).

    Args:
        scaled: divide the scores by sqrt(D).
        masked_by: what is added to the scores of later positions.
    """
    steps = {"input": Step("x, the normalized residual stream", "B,T,C", x_BTC)}
    layers = {"Q": attn.query, "K": attn.key, "V": attn.value}
    for name, layer in layers.items():
        steps[name] = Step(
            f"x W_{name.lower()}{plus_bias(layer, name.lower())}", "B,T,C", layer(x_BTC)
        )
    by_head = {name: attn.split_heads(steps[name].value) for name in layers}
    letters = {"Q": "B,H,T,D", "K": "B,H,S,D", "V": "B,H,S,D"}
    for name, x_BHTD in by_head.items():
        steps[f"{name} by head"] = Step(f"{name} split into H x D", letters[name], x_BHTD)
    for name, norm in (("Q", attn.q_norm), ("K", attn.k_norm)):
        if not isinstance(norm, nn.Identity):
            by_head[name] = norm(by_head[name])
            formula = f"LayerNorm({name}), each head"
            steps[f"{name} normalized"] = Step(formula, letters[name], by_head[name])
        if attn.rotary is not None:
            by_head[name] = attn.rotary(by_head[name], 0)
            formula = f"{name} rotated by its position"
            steps[f"{name} rotated"] = Step(formula, letters[name], by_head[name])
    q_BHTD, k_BHSD, v_BHSD = by_head.values()

    scores = q_BHTD @ k_BHSD.mT
    steps["products"] = Step("Q K^T", "B,H,T,S", scores)
    if scaled:
        scores = scores / math.sqrt(q_BHTD.size(-1))
        steps["scores"] = Step("Q K^T / sqrt(D)", "B,H,T,S", scores)
    hidden = None
    if causal:
        T = x_BTC.size(1)
        hidden = ~causal_mask(T, T).expand(scores.shape)
        scores = torch.where(hidden, scores + masked_by, scores)
        steps["masked"] = Step(f"{masked_by:g} where key > query", "B,H,T,S", scores, hidden)
    weights_BHTS = scores.softmax(dim=-1)
    steps["weights A"] = Step("softmax over keys", "B,H,T,S", weights_BHTS, hidden)
    z_BHTD = weights_BHTS @ v_BHSD
    steps["heads z"] = Step("A V", "B,H,T,D", z_BHTD)
    merged_BTC = attn.merge_heads(z_BHTD)
    steps["merged"] = Step("the heads side by side", "B,T,C", merged_BTC)
    formula = f"merged W_O{plus_bias(attn.out, 'O')}"
    steps["output"] = Step(formula, "B,T,C", attn.out(merged_BTC))
    return steps


def plus_bias(layer: nn.Linear, name: str) -> str:
    return "" if layer.bias is None else f" + b_{name}"
