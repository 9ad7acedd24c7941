"""One attention layer by the textbook formula, in named steps, and by PyTorch's module.

`trace` prints the steps, `verify` compares the model with them, and `compare` changes one of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from common.errors import as_user_error
from lens.capture import capture
from model.attention import MultiHeadAttention, causal_mask
from model.error import largest_error
from model.gpt import GPT

FINITE = -10_000.0  # added to hidden scores in the third write-up; all other code uses -inf


@dataclass(frozen=True)
class Step:
    """A step of the computation, which is one line of the table."""

    formula: str
    letters: str
    """The shape in letters."""

    value: Tensor
    hidden: Tensor | None = None
    """True where a cell is masked, in the shape of the value; statistics exclude these cells."""


def layer_steps(
    attn: MultiHeadAttention,
    x_BTC: Tensor,
    *,
    causal: bool = True,
    scaled: bool = True,
    masked_by: float = -math.inf,
    per_head: bool = False,
) -> dict[str, Step]:
    """Compute self-attention from x (B, T, C) to the output (B, T, C), step by step.

    It does not use `model.attention.attention`, so that it can detect an error there.

    Args:
        scaled: divide the scores by sqrt(D).
        masked_by: number to add to the scores of later positions.
        per_head: use separate projections W_q, W_k and W_v for each head.
    """
    steps: dict[str, Step] = {}

    def add(
        name: str, formula: str, letters: str, value: Tensor, hidden: Tensor | None = None
    ) -> Tensor:
        steps[name] = Step(formula, letters, value, hidden)
        return value

    add("input", "x, the input of the layer", "B,T,C", x_BTC)
    heads = []
    for name, layer, norm, letters in (
        ("Q", attn.query, attn.q_norm, "B,H,T,D"),
        ("K", attn.key, attn.k_norm, "B,H,S,D"),
        ("V", attn.value, nn.Identity(), "B,H,S,D"),
    ):
        shared = attn.n_head // (layer.out_features // attn.head_width)
        formula = f"x W_{name.lower()}{plus_bias(layer, name.lower())}"
        projected = add(name, formula, "B,T,C" if shared == 1 else "B,S,G*D", layer(x_BTC))
        x_BHTD = attn.for_each_query(attn.split_heads(projected))
        if per_head:
            x_BHTD = project_per_head(attn, layer, x_BTC)
        formula = f"{name} split into H x D"
        if shared > 1:
            formula = f"{name} split into G x D, each for {shared} heads"
        add(f"{name} by head", formula, letters, x_BHTD)
        if not isinstance(norm, nn.Identity):
            formula = f"{type(norm).__name__}({name}), each head"
            x_BHTD = add(f"{name} normalized", formula, letters, norm(x_BHTD))
        if attn.rotary is not None and name != "V":
            formula, x_BHTD = f"{name} rotated by its position", attn.rotary(x_BHTD, 0)
            add(f"{name} rotated", formula, letters, x_BHTD)
        heads.append(x_BHTD)
    (q_BHTD, k_BHSD, v_BHSD), window = heads, attn.attend.window

    products = add("products", "Q K^T", "B,H,T,S", q_BHTD @ k_BHSD.mT)
    divisor = math.sqrt(q_BHTD.size(-1)) if scaled else 1.0
    formula = "Q K^T / sqrt(D)" if scaled else "Q K^T"
    scores, hidden = add("scores", formula, "B,H,T,S", products / divisor), None
    if causal:
        T = x_BTC.size(1)
        hidden = ~causal_mask(T, T, window).expand(scores.shape)
        scores = torch.where(hidden, scores + masked_by, scores)
        formula = f"{masked_by:g} where key > query"
        formula += f" or key <= query - {window}" if window else ""
        add("masked", formula, "B,H,T,S", scores, hidden)
    weights_BHTS = add("weights A", "softmax over keys", "B,H,T,S", scores.softmax(-1), hidden)
    z_BHTD = add("heads z", "A V", "B,H,T,D", weights_BHTS @ v_BHSD)
    merged_BTC = add("merged", "the heads side by side", "B,T,C", attn.merge_heads(z_BHTD))
    formula = f"merged W_O{plus_bias(attn.out, 'O')}"
    add("output", formula, "B,T,C", attn.out(merged_BTC))
    return steps


@torch.no_grad()
def check_attention(model: GPT, numbers: bool) -> None:
    """Check that each attention layer is the one that `layer_steps` describes. Otherwise, maps,
    scores and steps would show another model.

    Args:
        numbers: also compare what each layer computes; False for `verify`, which does so and names
            the largest difference.

    Raises:
        UserError: naming the first part that does not match, and the file to update.
    """
    V, C, H = model.token_embedding.num_embeddings, model.config.n_embd, model.config.n_head
    # A whole context, because a sliding window changes only late positions.
    size, generator = (1, model.config.block_size), torch.Generator().manual_seed(0)
    with as_user_error("the forward pass", "cannot be read by lens/capture.py"):
        layers = capture(model, torch.randint(V, size, generator=generator)).layers
    for i, layer in enumerate(layers):
        with as_user_error(f"layer {i}", "does not match lens/formula.py; update it"):
            if layer.attn.n_head != H:
                raise ValueError(f"{layer.attn.n_head} heads, expected {H}")
            kv = (model.config.kv_heads * model.config.head_width, C)
            for name, want in {"query": (C, C), "key": kv, "value": kv, "out": (C, C)}.items():
                shape = tuple(layer.attn.get_parameter(f"{name}.weight").shape)
                if shape != want:
                    raise ValueError(f"{name}.weight is {shape}, expected {want}")
            steps = layer_steps(layer.attn, layer.x_BTC)
            found = {"heads z": layer.z_BHTD, "output": layer.output_BTC}
            wrong = [n for n in found if largest_error(found[n], steps[n].value) > 1e-3]
            if numbers and wrong:
                raise ValueError(f"the step '{wrong[0]}' differs; verify shows where")
            if not wrong and largest_error(layer.weights_BHTS, steps["weights A"].value) > 1e-3:
                raise ValueError("attention_weights differs from what the kernel computes")


def plus_bias(layer: nn.Linear, name: str) -> str:
    return "" if layer.bias is None else f" + b_{name}"


def by_head(attn: MultiHeadAttention, weight: Tensor) -> Tensor:
    """Return what each head uses of a weight or bias of `query`, `key` or `value`, (H, D, ...):
    head h uses rows h * D to (h + 1) * D, and the heads of a group share keys and values."""
    return attn.for_each_query(weight.unflatten(0, (-1, attn.head_width))[None])[0]


def project_per_head(attn: MultiHeadAttention, layer: nn.Linear, x_BTC: Tensor) -> Tensor:
    """Project x as in the paper, (B, H, T, D), with a (D, C) matrix for each head."""
    x_BHTD = torch.einsum("btc,hdc->bhtd", x_BTC, by_head(attn, layer.weight))
    return x_BHTD if layer.bias is None else x_BHTD + by_head(attn, layer.bias)[:, None]


def layer_per_head(attn: MultiHeadAttention, x_BTC: Tensor) -> Tensor:
    """Compute the output as in the paper, with separate projections for each head."""
    return layer_steps(attn, x_BTC, per_head=True)["output"].value


def layer_by_torch(attn: MultiHeadAttention, x_BTC: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.MultiheadAttention` with the layer's weights. Its three projections are one
    matrix, in which shared keys and values are repeated, its mask has the opposite polarity, and it
    has no rotary positions and no QK-norm."""
    C, bias, weights = attn.out.out_features, attn.out.bias is not None, {}
    for kind in ("weight", "bias") if bias else ("weight",):
        projections = [
            by_head(attn, getattr(layer, kind)) for layer in (attn.query, attn.key, attn.value)
        ]
        weights[f"in_proj_{kind}"] = torch.cat(projections).flatten(0, 1)
        weights[f"out_proj.{kind}"] = getattr(attn.out, kind)
    module = nn.MultiheadAttention(C, attn.n_head, bias=bias, batch_first=True)
    settings = {"attn_mask": None if mask is None else ~mask, "need_weights": False}
    output: Tensor = functional_call(module, weights, (x_BTC, x_BTC, x_BTC), settings)[0]
    return output


def with_gradients(
    compute: Callable[[Tensor], Tensor], attn: MultiHeadAttention, x_BTC: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output for x, and the gradients of a fixed random projection of the output: for x,
    and for the layer's weights by head, (4, H, D, C): W_q, W_k, W_v, and W_O transposed."""
    x_BTC = x_BTC.detach().requires_grad_()
    output = compute(x_BTC)
    generator = torch.Generator().manual_seed(0)
    onto = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    weights = [layer.weight for layer in (attn.query, attn.key, attn.value, attn.out)]
    of_x, *of_weights = torch.autograd.grad((output * onto.to(output)).sum(), [x_BTC, *weights])
    of_weights[3] = of_weights[3].T
    of_heads = torch.stack([by_head(attn, gradient) for gradient in of_weights])
    return output.detach(), of_x, of_heads


def change(got: Tensor, want: Tensor) -> float:
    """Return |got - want| / |want| in Euclidean norms."""
    return ((got - want).norm() / want.norm().clamp(min=1e-30)).item()
