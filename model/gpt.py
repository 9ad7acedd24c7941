"""The network: embeddings, a stack of blocks, logits. The loss is a function beside it."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from model.attention import KVCache, MultiHeadAttention, Rotary
from model.config import ModelConfig
from model.kernels import Dropout

NGRAM_ROWS = 16_381  # a prime, so that n-grams that share a row have little else in common


def make_norm(config: ModelConfig) -> nn.Module:
    """The normalisation that the config names."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.n_embd, eps=1e-5)
    return nn.LayerNorm(config.n_embd, bias=config.bias)


class SquaredReLU(torch.autograd.Function):
    """`squared_relu` with half the passes over memory in its backward pass."""

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


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2, elementwise (So et al. 2021, Primer)."""
    if x.requires_grad:
        return SquaredReLU.apply(x)  # type: ignore[no-untyped-call]
    return F.relu(x).square()


class MLP(nn.Module):
    """Up to four times the width, a nonlinearity, and down again.

    GELU is Hendrycks & Gimpel 2016, not the approximation with tanh that GPT-2 was trained with,
    which is six times slower on a CPU; squared ReLU is So et al. 2021 (Primer);
    SwiGLU is Shazeer 2020, its hidden width cut to 8/3 C so that it has as many weights.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        hidden = 4 * config.n_embd
        if self.activation == "swiglu":
            hidden = math.ceil(8 * config.n_embd / 3)
            self.gate = nn.Linear(config.n_embd, hidden, config.bias)
        self.up = nn.Linear(config.n_embd, hidden, config.bias)
        self.down = nn.Linear(hidden, config.n_embd, config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C), each position by itself."""
        hidden = self.up(x_BTC)
        if self.activation == "gelu":
            hidden = F.gelu(hidden)
        elif self.activation == "relu2":
            hidden = squared_relu(hidden)
        else:
            hidden = F.silu(self.gate(x_BTC)) * hidden
        return self.down(hidden)


class Block(nn.Module):
    """Pre-norm: each sublayer reads a normalised stream and adds what it found to the stream."""

    def __init__(self, config: ModelConfig, rotary: Rotary | None) -> None:
        super().__init__()
        self.attn_norm = make_norm(config)
        self.attn = MultiHeadAttention(
            config.n_embd,
            config.n_head,
            bias=config.bias,
            dropout=config.attn_dropout,
            kernel=config.attention,
            qk_norm=config.qk_norm,
            rotary=rotary,
        )
        self.mlp_norm = make_norm(config)
        self.mlp = MLP(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTC: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x_BTC = x_BTC + self.dropout(self.attn(self.attn_norm(x_BTC), causal=True, cache=cache))
        x_BTC = x_BTC + self.dropout(self.mlp(self.mlp_norm(x_BTC)))
        return x_BTC


@dataclass
class Cache:
    """What a model remembers of the positions that it has read."""

    layers: list[KVCache]
    """Keys and values."""

    recent: Tensor | None = None
    """The last tokens, (B, ngrams - 1), if any were read and n-grams need them."""

    @property
    def length(self) -> int:
        """Positions read."""
        return self.layers[0].length

    def forget(self) -> None:
        """Start anew, in the same buffers."""
        self.recent = None
        for layer in self.layers:
            layer.length = 0


class GPT(nn.Module):
    """A decoder-only Transformer (Radford et al. 2019): tokens in, next-token logits out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(vocab_size, config.n_embd)
        learned = config.positions == "learned"
        self.position_embedding = (
            nn.Embedding(config.block_size, config.n_embd) if learned else None
        )
        self.ngram_embeddings = nn.ModuleList(
            nn.Embedding(min(vocab_size**n, NGRAM_ROWS), config.n_embd)
            for n in range(2, config.ngrams + 1)
        )
        self.rotary = None if learned else Rotary(config.head_width, config.block_size)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, self.rotary) for _ in range(config.n_layer))
        self.final_norm = make_norm(config)
        self.head = None if config.tie_head else nn.Linear(config.n_embd, vocab_size, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """GPT-2's initialisation, but for embeddings and head, which start at half its scale.

        Matrices are normal with standard deviation 0.02, those that add to the stream less by
        the square root of how many do; biases are zero. With smaller embeddings the logits start
        near zero at any width, and the first loss near ln V. Vectors of n-grams start at zero:
        most are met rarely.
        """
        residual = 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, parameter in self.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=0.0 if self.config.zero_init else residual)
            elif "ngram" in name:
                nn.init.zeros_(parameter)
            elif "embedding" in name or name == "head.weight":
                nn.init.normal_(parameter, std=0.01)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits of the next token after each position.

        Args:
            tokens_BT: token ids.
            cache: of the positions before these, from `new_cache`; added to.

        Returns:
            (B, T, V).

        Raises:
            ValueError: for more positions than `block_size`.
        """
        positions = (cache.length if cache else 0) + tokens_BT.size(1)
        if positions > self.config.block_size:
            raise ValueError(f"{positions} positions, but block_size is {self.config.block_size}")
        # The blocks may be narrower than the embeddings; see `Runtime.forward_of`.
        x_BTC = self.dropout(
            self.embed(tokens_BT, cache).to(next(self.final_norm.parameters()).dtype)
        )
        for layer, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, cache.layers[layer] if cache else None)
        return self.unembed(x_BTC)

    def unembed(self, x_BTC: Tensor) -> Tensor:
        """Logits (B, T, V) from the residual stream; before the last block, the logit lens."""
        x_BTC = self.final_norm(x_BTC)
        if self.head is None:
            return F.linear(x_BTC, self.token_embedding.weight.to(x_BTC.dtype))
        return self.head(x_BTC)

    def embed(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """What the first block reads, (B, T, C): embeddings of tokens, places and n-grams.

        Before the first token of a window all n-grams read token 0.
        """
        start, T = (cache.length if cache else 0), tokens_BT.size(1)
        x_BTC = self.token_embedding(tokens_BT)
        if self.position_embedding is not None:
            x_BTC = x_BTC + self.position_embedding.weight[start : start + T]
        before = self.config.ngrams - 1
        if before:
            if cache is None or cache.recent is None:
                history = F.pad(tokens_BT, (before, 0))
            else:
                history = torch.cat((cache.recent, tokens_BT), dim=1)
            V, row_BT = self.token_embedding.num_embeddings, tokens_BT
            for i, table in enumerate(self.ngram_embeddings, start=1):
                before_BT = history[:, before - i : before - i + T]  # the token i places back
                row_BT = row_BT + before_BT * pow(V, i, NGRAM_ROWS)
                x_BTC = x_BTC + table(row_BT % min(V ** (i + 1), NGRAM_ROWS))
            if cache is not None:
                cache.recent = history[:, -before:]
        return x_BTC

    def new_cache(self, batch_size: int) -> Cache:
        """An empty cache for decoding `batch_size` streams."""
        c, like = self.config, self.token_embedding.weight
        return Cache(
            [
                KVCache(batch_size, c.n_head, c.block_size, c.head_width, like)
                for _ in range(c.n_layer)
            ]
        )

    def num_parameters(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())


def next_token_loss(logits_BTV: Tensor, targets_BT: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of `targets`, the tokens that came next, in float32 at least."""
    dtype = torch.promote_types(logits_BTV.dtype, torch.float32)
    logits = logits_BTV.reshape(-1, logits_BTV.size(-1)).to(dtype)
    return F.cross_entropy(logits, targets_BT.reshape(-1), reduction=reduction)
