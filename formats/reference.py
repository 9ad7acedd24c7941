"""The model as formulas on its weights, for one sequence.

It computes what the config says and knows nothing else, so that a changed module is noticed before
the page, or another program, computes something else in its place.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from common.errors import UserError
from configs.config import ModelConfig
from model.error import largest_error
from model.gpt import ACTIVATIONS, GPT, NGRAM_ROWS

TOLERANCE = 1e-3  # relative to the largest logit; rounding is a hundredth of it


def reference_logits(weights: dict[str, Tensor], config: ModelConfig, tokens_T: Tensor) -> Tensor:
    """Compute the logits (T, V) after each token of a sequence.

    Args:
        weights: the `state_dict` or the named parameters of a GPT.

    Raises:
        KeyError: naming a weight that is missing.
    """
    W = {name: weight.double().cpu() for name, weight in weights.items()}
    T, used = len(tokens_T), set[str]()

    def get(name: str) -> Tensor | None:
        used.add(name)
        return W.get(name)

    def linear(name: str, x: Tensor) -> Tensor:
        used.add(f"{name}.weight")
        return F.linear(x, W[f"{name}.weight"], get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        if config.norm == "none" and name.endswith(("attn_norm", "mlp_norm", "final_norm")):
            return x
        used.add(f"{name}.weight")
        return F.layer_norm(x, x.shape[-1:], W[f"{name}.weight"], get(f"{name}.bias"))

    def rotate(x_HTD: Tensor) -> Tensor:
        half = x_HTD.size(-1) // 2
        angles_TD = torch.outer(
            torch.arange(T).double(), 10_000 ** (-torch.arange(half).double() / half)
        )
        cos, sin, (a, b) = angles_TD.cos(), angles_TD.sin(), x_HTD.split(half, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def heads(name: str, count: int, x_TC: Tensor) -> Tensor:
        x_HTD = linear(name, x_TC).unflatten(-1, (count, config.head_width)).transpose(0, 1)
        return x_HTD.repeat_interleave(config.n_head // count, dim=0)

    used.add("token_embedding.weight")
    x_TC = W["token_embedding.weight"][tokens_T]
    V = len(W["token_embedding.weight"])
    if config.positions == "learned":
        used.add("position_embedding.weight")
        x_TC = x_TC + W["position_embedding.weight"][:T]
    for n in range(2, config.ngrams + 1):
        number = torch.zeros_like(tokens_T)
        for back in range(n - 1, -1, -1):
            number = (number * V + F.pad(tokens_T, (back, 0))[:T]) % NGRAM_ROWS
        used.add(f"ngram_embeddings.{n - 2}.weight")
        x_TC = x_TC + W[f"ngram_embeddings.{n - 2}.weight"][number]
    distance_TT = torch.arange(T)[:, None] - torch.arange(T)
    for i, window in enumerate(config.windows):
        attn, mlp = f"blocks.{i}.attn", f"blocks.{i}.mlp"
        normed_TC = norm(f"blocks.{i}.attn_norm", x_TC)
        q = heads(f"{attn}.query", config.n_head, normed_TC)
        k, v = (heads(f"{attn}.{name}", config.kv_heads, normed_TC) for name in ("key", "value"))
        if config.qk_norm:
            q, k = norm(f"{attn}.q_norm", q), norm(f"{attn}.k_norm", k)
        if config.positions == "rotary":
            q, k = rotate(q), rotate(k)
        hidden_TT = (distance_TT < 0) | (distance_TT >= (window or T))
        scores_HTT = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(hidden_TT, -math.inf)
        z_TC = (scores_HTT.softmax(-1) @ v).transpose(0, 1).flatten(1)
        x_TC = x_TC + linear(f"{attn}.out", z_TC)
        if config.mlp_ratio:
            neurons = linear(f"{mlp}.up", norm(f"blocks.{i}.mlp_norm", x_TC))
            x_TC = x_TC + linear(f"{mlp}.down", ACTIVATIONS[config.activation](neurons))
    x_TC = norm("final_norm", x_TC)
    logits_TV = (
        x_TC @ W["token_embedding.weight"].T if config.tie_embeddings else linear("head", x_TC)
    )
    if unused := W.keys() - used:
        raise KeyError(min(unused))
    return logits_TV


@torch.no_grad()
def check_reference(model: GPT, what: str) -> None:
    """Check over a whole context that a model computes what its config says.

    Args:
        what: who supports only such models, for the message.

    Raises:
        UserError: if it computes something else.
    """
    T, V = model.config.block_size, model.token_embedding.num_embeddings
    tokens_T = torch.randint(V, (T,), generator=torch.Generator().manual_seed(0))
    try:
        want_TV = reference_logits(model.state_dict(), model.config, tokens_T)
        error = largest_error(model(tokens_T[None])[0], want_TV)
        reason = f"its logits differ by {error:.0e} of the largest" if error > TOLERANCE else ""
    except Exception as failed:  # weights with other names or shapes
        reason = f"{type(failed).__name__}: {failed}"
    if reason:
        raise UserError(f"{what} supports only the model that the config describes: {reason}")
