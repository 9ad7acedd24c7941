"""GPT: embeddings, blocks of attention and MLP, logits of the next token.

By default, it differs from GPT-2 (Radford et al. 2019; configs/gpt2.yaml) in these choices:

    positions       rotary, in the queries and keys of each layer; not learned embeddings
    attention       queries and keys are normalized in each head (QK-norm)
    MLP             squared ReLU; not GELU
    output head     has its own weights; not those of the token embedding
    biases          none, in linear layers and in LayerNorm
    initialization  projections into the residual stream are zero; embeddings have half the scale
    n-grams         --model.ngrams adds embeddings of the n-grams that end with each token
    precision       activations can be bfloat16; weights and their gradients are float32

Letters as in `model/attention.py`: B batch, T positions, C model width, V vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from configs.config import ModelConfig
from model.attention import Cache, KVCache, LayerNorm, Linear, MultiHeadAttention, Rotary
from model.fast.dropout import Dropout

NGRAM_ROWS = 16_381  # a prime, so that n-grams that share a row rarely share tokens


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


class MLP(nn.Module):
    """C -> 4 C, an activation, 4 C -> C, where 4 is `mlp_ratio`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        C, hidden = config.n_embd, config.mlp_ratio * config.n_embd
        self.up = Linear(C, hidden, config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.down = Linear(hidden, C, config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C), separately at each position."""
        return self.down(self.activation(self.up(x_BTC)))


def make_norm(config: ModelConfig) -> nn.Module:
    """Make the norm of the residual stream."""
    return LayerNorm(config.n_embd, bias=config.bias) if config.norm == "layer" else nn.Identity()


class Block(nn.Module):
    """Attention, then MLP: each reads the normalized residual stream and adds to it (pre-norm)."""

    def __init__(
        self, config: ModelConfig, rotary: Rotary | None, dropout: Dropout, window: int
    ) -> None:
        super().__init__()
        self.attn_norm = make_norm(config)
        self.attn = MultiHeadAttention(
            config.n_embd,
            config.n_head,
            config.n_kv_head,
            bias=config.bias,
            dropout=config.attn_dropout,
            kernel=config.attention,
            qk_norm=config.qk_norm,
            rotary=rotary,
            window=window,
        )
        self.has_mlp = config.mlp_ratio > 0
        if self.has_mlp:
            self.mlp_norm = make_norm(config)
            self.mlp = MLP(config)
        self.dropout = dropout

    def forward(self, x_BTC: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x_BTC = x_BTC + self.dropout(self.attn(self.attn_norm(x_BTC), causal=True, cache=cache))
        if self.has_mlp:
            x_BTC = x_BTC + self.dropout(self.mlp(self.mlp_norm(x_BTC)))
        return x_BTC


class NgramEmbeddings(nn.ModuleList):
    """A table of vectors for each n from 2 to `ngrams`.

    An n-gram is a number in base V, with its last token as the lowest digit. Its row is this number
    modulo the size of the table, so n-grams share rows if there are more n-grams than rows.
    """

    def __init__(self, ngrams: int, vocab_size: int, n_embd: int) -> None:
        super().__init__(
            nn.Embedding(min(vocab_size**n, NGRAM_ROWS), n_embd) for n in range(2, ngrams + 1)
        )
        self.vocab_size = vocab_size

    def forward(self, x_BTC: Tensor, history_BS: Tensor) -> Tensor:
        """Add the vectors of the n-grams of each n to `x`.

        Args:
            x_BTC: the last T positions.
            history_BS: all tokens so far; those before the first one count as token 0.
        """
        if not self:
            return x_BTC
        T, N = x_BTC.size(1), len(self)  # N tokens before the first position are all that is needed
        tokens = F.pad(history_BS, (N, 0))
        tokens = tokens[:, tokens.size(1) - T - N :]
        number = tokens
        for i, table in enumerate(self, start=1):
            # The shorter n-gram that ends one position earlier, followed by the token. A number
            # modulo the rows is enough for the next one, and never exceeds 64 bits.
            number = (number[:, :-1] * self.vocab_size + tokens[:, i:]) % NGRAM_ROWS
            x_BTC = x_BTC + table(number[:, N - i :])
        return x_BTC


class GPT(nn.Module):
    """A decoder-only Transformer, from tokens to the logits of the next token."""

    compute_dtype: torch.dtype | None = None
    """Type of the activations; None is the type of the weights. For training, `make_model` in
    training/step.py sets it to the precision of the machine. The weights keep their type.
    Embeddings are summed in the type of the weights and then cast, because their gradients are long
    sums over tokens."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        C, T = config.n_embd, config.block_size
        self.token_embedding = nn.Embedding(vocab_size, C)
        self.position_embedding = nn.Embedding(T, C) if config.positions == "learned" else None
        self.ngram_embeddings = NgramEmbeddings(config.ngrams, vocab_size, C)
        self.rotary = Rotary(C // config.n_head, T) if config.positions == "rotary" else None
        self.dropout = Dropout(config.dropout or 0.0)  # one for all; training may raise p
        self.blocks = nn.ModuleList(
            Block(config, self.rotary, self.dropout, window) for window in config.windows
        )
        self.final_norm = make_norm(config)
        self.head = None if config.tie_embeddings else Linear(C, vocab_size, config.head_bias)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize the weights as in GPT-2, but embeddings and head at half the scale.

        Matrices are normal with standard deviation 0.02. Matrices that write to the residual stream
        are divided by the square root of their number, or zero with `zero_init`. Biases are zero,
        and so are n-gram embeddings: most n-grams are too rare to unlearn noise. A small head gives
        small initial logits (standard deviation 0.01 sqrt(C)), and a loss near ln V.
        """
        writers = self.config.n_layer * (2 if self.config.mlp_ratio else 1)
        to_residual = 0.0 if self.config.zero_init else 0.02 / math.sqrt(writers)
        for name, weight in self.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.down.weight")):
                nn.init.normal_(weight, std=to_residual)
            elif name.startswith("ngram") or name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 if name.startswith("blocks.") else 0.01)

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Compute the logits of the next token after each position.

        Args:
            tokens_BT: token ids.
            cache: cache of the previous positions, from `new_cache`; updated.

        Returns:
            (B, T, V).

        Raises:
            ValueError: for more positions than `block_size`.
        """
        x_BTC = self.dropout(self.embed(tokens_BT, cache))
        for i, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, cache.layers[i] if cache else None)
        return self.unembed(x_BTC)

    def embed(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the sum of the embeddings of tokens, positions and n-grams, (B, T, C), and append
        the tokens to the cache."""
        start = cache.length if cache else 0
        end = start + tokens_BT.size(1)
        if end > self.config.block_size:
            raise ValueError(f"{end} positions, but block_size is {self.config.block_size}")
        history_BS = cache.append(tokens_BT) if cache else tokens_BT
        x_BTC = self.token_embedding(tokens_BT)
        if self.position_embedding:
            x_BTC = x_BTC + self.position_embedding(torch.arange(start, end, device=x_BTC.device))
        x_BTC = self.ngram_embeddings(x_BTC, history_BS)
        return x_BTC.to(self.compute_dtype or x_BTC.dtype)

    def unembed(self, x_BTC: Tensor) -> Tensor:
        """Compute logits (B, T, V) from a residual stream; for earlier layers, the logit lens."""
        x_BTC = self.final_norm(x_BTC)
        if self.head:
            return self.head(x_BTC)
        return F.linear(x_BTC, self.token_embedding.weight.to(x_BTC.dtype))

    def new_cache(self) -> Cache:
        """Return an empty cache for decoding."""
        return Cache(self.config.n_layer, self.config.block_size)

    def num_parameters(self) -> int:
        """Return the number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def describe(self) -> str:
        """Return the shape in one line."""
        config = self.config
        return (
            f"{config.n_layer} layers x {config.n_embd} wide, {config.n_head} heads, "
            f"context {config.block_size}, {self.num_parameters():,} parameters"
        )


def next_token_loss(logits_BTV: Tensor, targets_BT: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy with the next tokens in nats, in at least float32."""
    dtype = torch.promote_types(logits_BTV.dtype, torch.float32)
    return F.cross_entropy(
        logits_BTV.flatten(0, -2).to(dtype), targets_BT.flatten(), reduction=reduction
    )
