"""GPT (Radford et al. 2019): embeddings, blocks of attention and MLP, logits of the next token.

Letters as in `model/attention.py`: B batch, T positions, C model width, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import MultiHeadAttention, Rotary
from model.cache import Cache, KVCache
from model.config import ModelConfig
from model.kernels import Dropout, LayerNorm, Linear, RMSNorm, squared_relu
from model.ngrams import NgramEmbeddings


def make_norm(config: ModelConfig) -> nn.Module:
    """The normalization that the config names."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.n_embd, eps=1e-5)
    return LayerNorm(config.n_embd, bias=config.bias)


class MLP(nn.Module):
    """C -> 4 C, a nonlinearity, 4 C -> C.

    GELU: Hendrycks & Gimpel 2016; GPT-2's approximation by tanh is six times slower on a CPU.
    Squared ReLU: So et al. 2021, Primer. SwiGLU: Shazeer 2020, with 8/3 C for 4 C, so that its
    three matrices have as many weights.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        hidden = 4 * config.n_embd
        if self.activation == "swiglu":
            hidden = math.ceil(8 * config.n_embd / 3)
            self.gate = Linear(config.n_embd, hidden, config.bias)
        self.up = Linear(config.n_embd, hidden, config.bias)
        self.down = Linear(hidden, config.n_embd, config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C), each position by itself."""
        hidden = self.up(x_BTC)
        if self.activation == "gelu":
            hidden = F.gelu(hidden)
        elif self.activation == "gelu_tanh":
            hidden = F.gelu(hidden, approximate="tanh")
        elif self.activation == "relu2":
            hidden = squared_relu(hidden)
        else:
            hidden = F.silu(self.gate(x_BTC)) * hidden
        return self.down(hidden)


class Block(nn.Module):
    """Attention, then MLP: each reads the normalized residual stream and adds to it (pre-norm)."""

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
        return x_BTC + self.dropout(self.mlp(self.mlp_norm(x_BTC)))


class GPT(nn.Module):
    """A decoder-only Transformer: tokens in, logits of the next token out."""

    compute_dtype: torch.dtype | None = None
    """Type of the activations, set by Runtime.prepare; None is that of the weights. The embeddings
    are summed in their own type, then cast."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        C, positions = config.n_embd, config.positions
        self.token_embedding = nn.Embedding(vocab_size, C)
        learned = nn.Embedding(config.block_size, C) if positions == "learned" else None
        self.position_embedding = learned
        self.ngram_embeddings = NgramEmbeddings(config.ngrams, vocab_size, C)
        rotary = Rotary(config.head_width, config.block_size) if positions == "rotary" else None
        self.rotary = rotary
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, self.rotary) for _ in range(config.n_layer))
        self.final_norm = make_norm(config)
        self.head = None if config.tie_embeddings else Linear(C, vocab_size, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """GPT-2's initialization, but with embeddings and head of half its scale.

        Matrices are normal with standard deviation 0.02; those that write to the residual stream
        are smaller by the square root of their number, or zero if the config says so. Biases and
        n-gram embeddings are zero: most n-grams are rare. With a small head the logits start
        small (standard deviation 0.01 sqrt(C)), and the loss near ln V.
        """
        to_residual = 0.0 if self.config.zero_init else 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, weight in self.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.down.weight")):
                nn.init.normal_(weight, std=to_residual)
            elif name.startswith("ngram") or name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 if name.startswith("blocks.") else 0.01)

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits of the next token after each position.

        Args:
            tokens_BT: token ids.
            cache: of the positions before these, from `new_cache`; updated.

        Returns:
            (B, T, V).

        Raises:
            ValueError: for more positions than `block_size`.
        """
        x_BTC = self.dropout(self.embed(tokens_BT, cache))
        for i, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, cache.layers[i] if cache is not None else None)
        return self.unembed(x_BTC)

    def embed(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """The sum of the embeddings of tokens, positions and n-grams, (B, T, C)."""
        start = cache.length if cache is not None else 0
        end = start + tokens_BT.size(1)
        if end > self.config.block_size:
            raise ValueError(f"{end} positions, but block_size is {self.config.block_size}")
        x_BTC = self.token_embedding(tokens_BT)
        if self.position_embedding is not None:
            x_BTC = x_BTC + self.position_embedding.weight[start:end]
        if self.config.ngrams > 1:
            for ngram_BTC in self.ngram_embeddings(tokens_BT, cache):
                x_BTC = x_BTC + ngram_BTC
        return x_BTC.to(self.compute_dtype or x_BTC.dtype)

    def unembed(self, x_BTC: Tensor) -> Tensor:
        """Logits (B, T, V) from the residual stream; of an earlier layer's, the logit lens."""
        x_BTC = self.final_norm(x_BTC)
        if self.head is None:
            return F.linear(x_BTC, self.token_embedding.weight.to(x_BTC.dtype))
        return self.head(x_BTC)

    def new_cache(self) -> Cache:
        """An empty cache for decoding."""
        return Cache(self.config.n_layer, self.config.block_size)

    def num_parameters(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())


def next_token_loss(logits_BTV: Tensor, targets_BT: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of the tokens that came next; computed in float32 at least."""
    dtype = torch.promote_types(logits_BTV.dtype, torch.float32)
    return F.cross_entropy(
        logits_BTV.flatten(0, -2).to(dtype), targets_BT.flatten(), reduction=reduction
    )
