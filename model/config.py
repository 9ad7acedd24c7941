"""What the network looks like. Nothing here is about text, files or schedules."""

from dataclasses import dataclass
from typing import Literal

from common.errors import require_at_least, require_fraction


@dataclass(frozen=True)
class ModelConfig:
    """The network: its size, and the choices inside a block."""

    block_size: int = 128
    """Longest context, in tokens."""

    n_layer: int = 4
    """Number of blocks."""

    n_head: int = 4
    """Attention heads in a block; each is n_embd / n_head wide."""

    n_embd: int = 128
    """Width of the residual stream."""

    positions: Literal["learned", "rotary"] = "rotary"
    """How a token knows its place: an added, learned vector, or rotated queries and keys."""

    ngrams: int = 1
    """Beside each token, embed the n-grams of up to so many tokens that end with it; 1 embeds none.
    Up to 16,381 vectors for each n, which n-grams share where there are more."""

    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """The normalisation before each sublayer and before the head."""

    activation: Literal["gelu", "relu2", "swiglu"] = "relu2"
    """The MLP's nonlinearity: GPT-2's GELU, squared ReLU, or the gated SwiGLU."""

    qk_norm: bool = True
    """Normalise each head's queries and keys, with a learned gain (Dehghani et al. 2023)."""

    tie_head: bool = False
    """Use the token embedding as the output head too."""

    zero_init: bool = True
    """Start the matrices that add to the stream at zero, so that each block starts by doing
    nothing; otherwise small, as in GPT-2."""

    bias: bool = False
    """Biases in the linear layers and in LayerNorm."""

    dropout: float = 0.0
    """Share of the embedding and of each sublayer's output dropped in training."""

    attn_dropout: float = 0.0
    """Share of the attention weights dropped in training."""

    attention: Literal["fused", "explicit"] = "fused"
    """PyTorch's fused kernel, or the textbook formula step by step; they agree."""

    def __post_init__(self) -> None:
        require_at_least(
            1,
            model__block_size=self.block_size,
            model__n_layer=self.n_layer,
            model__n_head=self.n_head,
            model__n_embd=self.n_embd,
            model__ngrams=self.ngrams,
        )
        if self.ngrams > 16:
            raise ValueError(f"--model.ngrams must be at most 16, got {self.ngrams}")
        require_fraction(model__dropout=self.dropout, model__attn_dropout=self.attn_dropout)
        if self.n_embd % self.n_head:
            raise ValueError(
                f"--model.n_embd {self.n_embd} must be divisible by --model.n_head {self.n_head}"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"--model.positions rotary turns pairs of numbers, so the head width must be even; "
                f"n_embd {self.n_embd} / n_head {self.n_head} is {self.head_width}"
            )
        if self.qk_norm and self.head_width < 3:
            raise ValueError(
                f"--model.qk_norm leaves nothing but signs of a head {self.head_width} wide; "
                f"use fewer heads, a larger --model.n_embd, or --model.qk_norm false"
            )

    @property
    def head_width(self) -> int:
        """D = C / H."""
        return self.n_embd // self.n_head
