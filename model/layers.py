"""The layers of the model. If a docstring begins with a formula, the layer equals it up to
rounding; `tests/model/test_layers.py` compares them.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# --- Mixed precision: layers that compute in the type of their input ------------------------------
# If the activations are bfloat16, the weights and their gradients stay float32. torch.autocast
# would also keep norms and softmax in float32.


class Linear(nn.Linear):
    """x W^T + b, W and b cast to the type of x."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, *cast(x, self.weight, self.bias))


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * w + b (Ba et al. 2016), w and b cast to the type of x."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        weight, bias = cast(x, self.weight, self.bias)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def cast(x: Tensor, *weights: Tensor | None) -> Any:
    """Return the weights in the type of x."""
    return [None if weight is None else weight.to(x.dtype) for weight in weights]


def joint_linear(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """[layer(x) for layer in layers], as one matmul, which saves a tenth of a small training step.

    With gradients, the layers are not called, so that their hooks do not run. Without gradients,
    they are called: for a few rows, joining the weights takes longer than it saves.
    """
    if not torch.is_grad_enabled():
        return tuple(layer(x) for layer in layers)
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, *cast(x, weight, bias)).chunk(len(layers), dim=-1)


# --- Attention ------------------------------------------------------------------------------------


def causal_attention(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, dropout_p: float) -> Tensor:
    """attention(q, k, v, causal_mask(T, T), dropout_p)[0].

    Computes two matmuls and a softmax, with the scale and the mask in the first matmul. In bfloat16
    on a CPU, this takes a third of the time of PyTorch's fused kernel, forward and backward, but
    stores the (B, H, T, T) weights.
    """
    B, H, T, D = q_BHTD.shape
    q, k, v = (x.reshape(B * H, T, D) for x in (q_BHTD, k_BHTD, v_BHTD))
    mask_TT = q.new_full((T, T), -math.inf).triu_(1)  # added: -inf hides, 0 does not
    weights = torch.baddbmm(mask_TT, q, k.transpose(1, 2), alpha=D**-0.5).softmax(dim=-1)
    return (dropout(weights, dropout_p) @ v).view(B, H, T, D)


# --- Activations ----------------------------------------------------------------------------------


class SquaredReLU(torch.autograd.Function):
    """relu(x)^2 (So et al. 2021, Primer), with half the passes over memory in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (gradient * positive).mul_(2)


# By the name that `--model.activation` gives. Add one here.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # Hendrycks & Gimpel 2016
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's; six times slower on a CPU
    "relu": F.relu,
    "relu2": SquaredReLU.apply,
}


# --- Dropout --------------------------------------------------------------------------------------


def dropout(x: Tensor, p: float) -> Tensor:
    """x * keep / (1 - p), where keep is 0 with probability p, else 1 (Srivastava et al. 2014).

    On a CPU, each element uses 16 bits of a 64-bit random number, so p is rounded to a multiple of
    1 / 65,536. PyTorch draws a number for each element, which takes four times as long.
    """
    if p == 0 or x.device.type != "cpu":
        return F.dropout(x, p)
    dropped = min(round(p * 2**16), 2**16 - 1)
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
    return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))


class Dropout(nn.Dropout):
    """`dropout` in training, and the identity in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return dropout(x, self.p if self.training else 0.0)
