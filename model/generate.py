"""Text from the model, a token at a time: where the window starts, how a token is drawn."""

from collections.abc import Iterator

import torch
from torch import Tensor

from model.gpt import GPT


def window_start(position: int, block_size: int) -> int:
    """First position that the model sees when it reads the token at `position`.

    Nothing is forgotten until the window is full. Then its last half is kept and read again
    as the start of a new one, so that a cache is rebuilt once in half a window, not at every
    token. Decoding with and without the cache both obey this.
    """
    hop = block_size - block_size // 2
    return max(0, (position - block_size) // hop + 1) * hop


def next_token_probabilities(
    logits_BV: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Tensor:
    """The distribution to draw the next token from, (B, V), each row summing to 1.

    Args:
        temperature: divides the logits; 0 puts everything on the likeliest token.
        top_k: keep the k likeliest tokens; more than V keeps all.
        top_p: keep the fewest likeliest tokens whose probabilities sum to `top_p`
            (Holtzman et al. 2020).
        min_p: keep tokens at least `min_p` times as likely as the likeliest
            (Nguyen et al. 2024).

    The filters act one after the other, in this order; the likeliest token always stays.
    """
    if temperature > 0 and top_k is None and top_p == 1.0 and min_p == 0.0:
        scores_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
        return (scores_BV / max(temperature, 1e-30)).softmax(dim=-1)
    if temperature == 0:
        top_k, temperature = 1, 1.0
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    # With the largest subtracted first, a tiny temperature makes -inf of the rest, never inf - inf.
    sorted_BV = ((sorted_BV - sorted_BV[:, :1]) / max(temperature, 1e-30)).softmax(-1)
    if top_k is not None:
        sorted_BV[:, top_k:] = 0.0
    keep_BV = sorted_BV >= min_p * sorted_BV[:, :1]
    if top_p < 1.0:
        mass_before_BV = sorted_BV.cumsum(-1) - sorted_BV  # of the likelier tokens
        keep_BV &= mass_before_BV < top_p * sorted_BV.sum(-1, keepdim=True)
        keep_BV[:, 0] = True  # also when top_p is so small that the product is zero
    kept_BV = torch.zeros_like(sorted_BV).scatter(-1, order_BV, sorted_BV * keep_BV)
    return kept_BV / kept_BV.sum(-1, keepdim=True)


class Decoder:
    """Reads a text piece by piece and says what comes next, seeing what `window_start` allows."""

    def __init__(self, model: GPT, batch_size: int = 1, use_cache: bool = True) -> None:
        """
        Args:
            batch_size: texts read side by side.
            use_cache: keep keys and values of what was read; without, each call reads the whole
                window again. Slower, and the same logits up to rounding.
        """
        self.model = model
        self.cache = model.new_cache(batch_size) if use_cache else None
        self.start = 0
        device = model.token_embedding.weight.device
        self.window_BT = torch.empty(batch_size, 0, dtype=torch.long, device=device)

    @torch.inference_mode()
    def read(self, tokens_BT: Tensor) -> Tensor:
        """Read T more tokens; return the logits (B, V) of the one after them."""
        window_BT = torch.cat((self.window_BT, tokens_BT), dim=1)
        start = window_start(self.start + window_BT.size(1) - 1, self.model.config.block_size)
        self.window_BT = window_BT[:, start - self.start :]
        unread_BT = tokens_BT
        if self.cache is None or start != self.start:
            unread_BT = self.window_BT
            if self.cache is not None:
                self.cache.forget()
        self.start = start
        return self.model(unread_BT, self.cache)[:, -1]


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
    """Go on from each row of the prompt, yielding the next token of each, (B,), as it is drawn.

    Dropout is off meanwhile. Tokens are drawn on the CPU with `generator`, so that a seed means
    the same everywhere; for the filters see `next_token_probabilities`.
    """
    was_training = model.training
    model.eval()
    try:
        decoder = Decoder(model, prompt_BT.size(0), use_cache)
        unread_BT = prompt_BT
        for _ in range(max_new_tokens):
            logits_BV = decoder.read(unread_BT).cpu().float()
            if not logits_BV.isfinite().all():
                raise FloatingPointError(
                    "the model's logits are not finite: its weights are no use"
                )
            probabilities_BV = next_token_probabilities(logits_BV, temperature, top_k, top_p, min_p)
            unread_BT = torch.multinomial(probabilities_BV, 1, generator=generator)
            yield unread_BT[:, 0]
            unread_BT = unread_BT.to(prompt_BT.device)
    finally:
        model.train(was_training)
