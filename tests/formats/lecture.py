"""The GPT of Karpathy's lecture, written from its description."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Head(nn.Module):
    """An attention head with its own key, query and value layers, and the mask as a buffer."""

    factor = "D**-0.5"  # of the scores, a formula of C and D; in the video C**-0.5

    def __init__(self, C: int, D: int, block_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(C, D, bias=False)
        self.query = nn.Linear(C, D, bias=False)
        self.value = nn.Linear(C, D, bias=False)
        self.register_buffer("tril", torch.ones(block_size, block_size).tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        scale = eval(self.factor, {"C": x.size(-1), "D": k.size(-1)})
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


class Block(nn.Module):
    def __init__(self, C: int, H: int, block_size: int, activation: nn.Module) -> None:
        super().__init__()
        heads = nn.ModuleList(Head(C, C // H, block_size) for _ in range(H))
        net = nn.Sequential(nn.Linear(C, 4 * C), activation, nn.Linear(4 * C, C), nn.Dropout(0.2))
        self.sa: Any = nn.ModuleDict({"heads": heads, "proj": nn.Linear(C, C)})
        self.ffwd = nn.ModuleDict({"net": net})
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.mlp: Any = lambda x: net(x)  # as in minGPT: a deep copy still calls the original

    def forward(self, x: Tensor) -> Any:
        normed = self.ln1(x)
        x = x + self.sa["proj"](torch.cat([head(normed) for head in self.sa["heads"]], -1))
        return x + self.mlp(self.ln2(x))


class GPTLanguageModel(nn.Module):
    """The lecture's model, with 12 heads. It returns logits and loss; with targets, the logits are
    flattened."""

    def __init__(self, V: int, activation: nn.Module | None = None) -> None:
        super().__init__()
        C, T = 24, 32
        self.token_embedding_table = nn.Embedding(V, C)
        self.position_embedding_table = nn.Embedding(T, C)
        self.blocks = nn.Sequential(*(Block(C, 12, T, activation or nn.ReLU()) for _ in range(2)))
        self.ln_f = nn.LayerNorm(C)
        self.lm_head = nn.Linear(C, V)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.token_embedding_table(idx)
        x = x + self.position_embedding_table.weight[: idx.size(1)]
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        if targets is None:
            return logits, None
        logits = logits.flatten(0, 1)
        return logits, F.cross_entropy(logits, targets.flatten())
