"""Generation: how a token is sampled, and which part of a long text the model reads."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from configs.config import STRICT, Count, ModelConfig, NonNegative


@dataclass(frozen=True, config=STRICT)
class Sampling:
    """How a token is sampled. To add a rule, add a field and its lines in `probabilities`."""

    temperature: NonNegative = 0.8
    """Divide the logits by this value. Values below 1 make likely tokens more likely; 0 always
    selects the most likely token."""

    top_k: Count | None = None
    """Sample only from the k most likely tokens."""

    top_p: Annotated[float, Field(ge=1e-6, le=1)] = 1.0
    """Sample only from the smallest set of most likely tokens with at least this total
    probability."""

    def probabilities(self, logits_BV: Tensor) -> Tensor:
        """Return the distribution of the next token, (B, V). It keeps the most likely token."""
        if self.temperature == 0:
            return F.one_hot(logits_BV.argmax(-1), logits_BV.size(-1)).to(logits_BV.dtype)
        # With the largest subtracted first, a tiny temperature makes -inf of the rest, never NaN.
        logits_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / max(self.temperature, 1e-30)
        if self.top_k is not None:
            top_Bk = logits_BV.topk(min(self.top_k, logits_BV.size(-1))).values
            logits_BV[logits_BV < top_Bk[:, -1:]] = -math.inf
        if self.top_p < 1:  # Holtzman et al. 2020
            sorted_BV, order_BV = logits_BV.softmax(-1).sort(descending=True, stable=True)
            unlikely_BV = sorted_BV.cumsum(-1) - sorted_BV >= self.top_p
            logits_BV[torch.empty_like(unlikely_BV).scatter(-1, order_BV, unlikely_BV)] = -math.inf
        return logits_BV.softmax(-1)


class Decoder(Protocol):
    """What generates: a GPT, or a faster form of it, from model/fast/choose.py."""

    config: ModelConfig

    def forward(self, tokens_BT: Tensor, cache: Any) -> Tensor:
        """Return the logits (B, T, V) of tokens that follow those in the cache, and append them."""
        ...

    def new_cache(self) -> Any:
        """Return an empty cache."""
        ...


def generate(
    decoder: Decoder,
    prompt_BT: Tensor,
    max_new_tokens: int,
    sampling: Sampling,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Continue each row of the prompt, and yield the next token of each row, (B,), when sampled.

    Tokens are sampled on the CPU, so that `generator` draws the same random numbers for every
    device.

    Args:
        decoder: a GPT in eval mode, so that nothing is dropped, or another decoder.

    Raises:
        FloatingPointError: if the logits are not finite.
    """
    window, tokens_BT = Window(decoder), prompt_BT
    for _ in range(max_new_tokens):
        logits_BV = window.read(tokens_BT).cpu().float()
        if not math.isfinite(logits_BV.sum()):  # faster than to test each
            raise FloatingPointError("the model's logits are not finite")
        # What torch.multinomial does, in half of its time: the smallest of random numbers with
        # these rates.
        probability_BV = sampling.probabilities(logits_BV)
        random_BV = torch.empty_like(probability_BV).exponential_(generator=generator)
        next_B1 = (probability_BV / random_BV).argmax(-1, keepdim=True)
        yield next_B1.squeeze(1)
        tokens_BT = next_B1.to(prompt_BT.device)


class Window:
    """The part of a text that the model sees, which moves on as the text is read."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.cache = decoder, decoder.new_cache()
        self.start = self.end = 0  # in the text, of the tokens that the model sees
        self.parts: list[Tensor] = []  # these tokens

    @torch.inference_mode()
    def read(self, tokens_BT: Tensor) -> Tensor:
        """Read the next T tokens, (B, T); return the logits (B, V) of the one after them."""
        self.parts.append(tokens_BT)
        self.end += tokens_BT.size(1)
        start = window_start(self.end - 1, self.decoder.config.block_size)
        if start != self.start:  # the cache has no room: read the new window from its start
            tokens_BT = torch.cat(self.parts, dim=1)[:, start - self.start :]
            self.parts, self.cache, self.start = [tokens_BT], self.decoder.new_cache(), start
        # Not compiled, if the model is: its shapes change at every token.
        return self.decoder.forward(tokens_BT, self.cache).select(1, -1)


def window_start(position: int, block_size: int) -> int:
    """Return the first position that the model sees when it reads the token at `position`.

    The window grows until it is full. Then its last half becomes the start of the next window, so
    that the cache is refilled once in half a window instead of at every token. With block_size 8,
    positions 0 to 7 see from position 0, 8 to 11 from 4, and 12 to 15 from 8.
    """
    hop = block_size - block_size // 2
    return max(0, (position - block_size) // hop + 1) * hop
