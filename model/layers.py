"""The layers that compute in the type of their input, and the activations.

If the activations are bfloat16, the weights and their gradients stay float32. torch.autocast would
also keep norms and softmax in float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from model.fast.dropout import dropout


class Linear(nn.Linear):
    """x W^T + b, W and b cast to the type of x."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, cast(self.weight, x), cast(self.bias, x))


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * w + b (Ba et al. 2016), w and b cast to the type of x."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return F.layer_norm(
            x, self.normalized_shape, cast(self.weight, x), cast(self.bias, x), self.eps
        )


class Dropout(nn.Dropout):
    """`nn.Dropout`, with `fast.dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return dropout(x, self.p, self.training)


def cast(weight: Tensor | None, x: Tensor) -> Any:
    """Return a weight in the type of x, or None if there is none."""
    return None if weight is None else weight.to(x.dtype)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021, Primer)."""
    return F.relu(x).square()


# By the name that `--model.activation` gives. Add one here.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # Hendrycks & Gimpel 2016
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's; six times slower on a CPU
    "relu": F.relu,
    "relu2": squared_relu,
}
