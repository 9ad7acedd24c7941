"""The config of the network, without text, files or schedules."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.fields import STRICT, Count, Fraction
from model.attention import Kernel
from model.layers import ACTIVATIONS


@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    """The network: its size, and the choices inside a block."""

    block_size: Annotated[int, Field(ge=1, le=2**20)] = 128
    """Maximum context length, in tokens."""

    n_layer: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of blocks."""

    n_head: Count = 4
    """Number of attention heads in a block, each of width n_embd / n_head."""

    n_embd: Annotated[int, Field(ge=1, le=10**5)] = 128
    """Width of the residual stream."""

    positions: Literal["learned", "rotary", "none"] = "rotary"
    """Position encoding: learned embeddings, rotary, or none; with none, only the causal mask
    distinguishes positions."""

    ngrams: Annotated[int, Field(ge=1, le=16)] = 1
    """Add embeddings of the n-grams that end with each token, from bigrams up to this n. 1 adds
    none. Each n has a table of at most 16,381 rows, which n-grams share by hashing."""

    # The choices are the names in the table of model/layers.py.
    activation: Literal[tuple(ACTIVATIONS)] = "relu2"  # type: ignore[valid-type]
    """Nonlinearity of the MLP: GELU, its tanh approximation as in GPT-2, ReLU, or squared ReLU."""

    qk_norm: bool = True
    """Apply LayerNorm to the queries and keys of each head (Dehghani et al. 2023)."""

    tie_embeddings: bool = False
    """Share the weights of the token embedding and the output head."""

    zero_init: bool = True
    """Initialize the projections into the residual stream to zero, so that each block starts as the
    identity. If false, initialize them to small random numbers, as in GPT-2."""

    bias: bool = False
    """Use biases in the linear layers of the blocks and in LayerNorm."""

    head_bias: bool = False
    """Use a bias in the output head; requires tie_embeddings false."""

    dropout: Fraction = 0.0
    """Dropout probability of the embedding and of each sublayer's output."""

    attn_dropout: Fraction = 0.0
    """Dropout probability of the attention weights."""

    attention: Kernel = "fused"
    """fused uses PyTorch's fused kernel, or, in bfloat16 on a CPU, two matmuls, which are faster.
    explicit computes the formula step by step. They agree up to rounding."""

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} must be divisible by n_head {self.n_head}")
        if self.head_bias and self.tie_embeddings:
            raise ValueError("head_bias must be false with tie_embeddings")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError("n_embd / n_head must be even for rotary positions")

    @property
    def head_width(self) -> int:
        """D = C / H."""
        return self.n_embd // self.n_head
