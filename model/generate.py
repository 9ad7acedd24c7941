"""Text from the model, a token at a time: what it reads of a long text, how a token is drawn."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from model.gpt import GPT


def generate(
    model: GPT,
    prompt_BT: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> Iterator[Tensor]:
    """Continue each row of the prompt, yielding the next token of each, (B,), as it is drawn.

    Dropout is off meanwhile. Tokens are drawn on the CPU, so that the seed of `generator` means
    the same on every device. For the other arguments see `next_token_probabilities` and `Decoder`.

    Raises:
        FloatingPointError: when the logits are not finite.
    """
    was_training = model.training
    model.eval()
    try:
        decoder = Decoder(model, use_cache)
        tokens_BT = prompt_BT
        for _ in range(max_new_tokens):
            logits_BV = decoder.read(tokens_BT).cpu().float()
            if not all(map(math.isfinite, logits_BV.aminmax())):
                raise FloatingPointError("the model's logits are not finite (NaN or Inf)")
            probabilities_BV = next_token_probabilities(logits_BV, temperature, top_k, top_p, min_p)
            next_B1 = torch.multinomial(probabilities_BV, 1, generator=generator)
            yield next_B1[:, 0]
            tokens_BT = next_B1.to(prompt_BT.device)
    finally:
        model.train(was_training)


def next_token_probabilities(
    logits_BV: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Tensor:
    """The distribution to draw the next token from, (B, V), each row summing to 1.

    Args:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: keep the k likeliest tokens; more than V keeps all.
        top_p: keep the fewest likeliest tokens whose probabilities sum to `top_p`, of those that
            top_k kept (Holtzman et al. 2020).
        min_p: keep tokens at least `min_p` times as likely as the likeliest (Nguyen et al. 2024).

    The likeliest token is always kept.
    """
    if temperature == 0:
        return F.one_hot(logits_BV.argmax(-1), logits_BV.size(-1)).to(logits_BV.dtype)
    # With the largest subtracted first, a tiny temperature makes -inf of the rest, never inf - inf.
    logits_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / max(temperature, 1e-30)
    if top_k is None and top_p == 1.0 and min_p == 0.0:
        return logits_BV.softmax(-1)
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    sorted_BV = sorted_BV.softmax(-1)
    if top_k is not None:
        sorted_BV[:, top_k:] = 0.0
    likelier_BV = sorted_BV.cumsum(-1) - sorted_BV  # probability of all likelier tokens
    keep_BV = sorted_BV >= min_p * sorted_BV[:, :1]
    if top_p < 1.0:
        keep_BV &= likelier_BV < top_p * sorted_BV.sum(-1, keepdim=True)
    keep_BV[:, 0] = True  # also where top_p is so small that the product is zero
    kept_BV = torch.zeros_like(sorted_BV).scatter(-1, order_BV, sorted_BV * keep_BV)
    return kept_BV / kept_BV.sum(-1, keepdim=True)


class Decoder:
    """Reads a text in parts of any length and gives the logits of what comes next."""

    def __init__(self, model: GPT, use_cache: bool = True) -> None:
        """
        Args:
            use_cache: keep keys and values of what was read; without, each call reads the whole
                window again. Slower, and the same logits up to rounding.
        """
        self.model = model
        self.cache = model.new_cache() if use_cache else None
        self.window_BT: Tensor | None = None  # what the model sees of the text
        self.start = 0  # the window's first position in the text

    @torch.inference_mode()
    def read(self, tokens_BT: Tensor) -> Tensor:
        """Read the next T tokens, (B, T); return the logits (B, V) of the one after them."""
        seen_BT = tokens_BT if self.window_BT is None else torch.cat((self.window_BT, tokens_BT), 1)
        start = window_start(self.start + seen_BT.size(1) - 1, self.model.config.block_size)
        self.window_BT = seen_BT[:, start - self.start :]
        if self.cache is None:
            tokens_BT = self.window_BT
        elif start != self.start:
            tokens_BT, self.cache = self.window_BT, self.model.new_cache()
        self.start = start
        return self.model(tokens_BT, self.cache)[:, -1]


def window_start(position: int, block_size: int) -> int:
    """First position that the model sees when it reads the token at `position`.

    The window grows until it is full. Then its last half becomes the start of the next one, so
    that a cache is made anew once in half a window, not at every token. With block_size 8,
    positions 0 to 7 see from 0 on, 8 to 11 from 4, 12 to 15 from 8.
    """
    hop = block_size - block_size // 2
    return max(0, (position - block_size) // hop + 1) * hop
