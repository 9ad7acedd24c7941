"""The decoder of a model: the fastest one that reproduces its forward pass over a whole context. A
changed model may have no other than itself."""

import copy

import torch
from torch import Tensor

from common.errors import printable
from model.attention import Cache
from model.error import largest_error
from model.fast.decode import GPTInC
from model.generate import Decoder
from model.gpt import GPT

# Largest errors, relative to the largest logit. Rounding is a tenth of them or less.
IN_C, IN_FLOAT32, IN_BFLOAT16 = 1e-4, 1e-3, 0.1


def optimize_for_decoding(
    model: GPT, dtype: torch.dtype = torch.float32
) -> tuple[Decoder, str | None]:
    """Return a fast decoder and, if it is a slower one than there could be, what to tell the user.

    On a CPU it is a `GPTInC`, on a GPU a model in `dtype`. If there is no compiler, or `decode.c`
    computes other logits, it is what `choose_decoder` returns. The model is in float32 and is not
    modified.

    Args:
        dtype: type of the weights and, on a GPU, of the activations. bfloat16 halves the memory to
            read.
    """
    on_cpu = model.token_embedding.weight.device.type == "cpu"
    try:
        rounded = model
        if dtype != torch.float32:
            rounded = copy.deepcopy(model)
            for parameter in rounded.parameters():  # decode.c reads some weights as float32
                parameter.data = parameter.to(dtype).to(torch.float32 if on_cpu else dtype)
        if not on_cpu:
            return choose_decoder(rounded)
        compiled = GPTInC(rounded, dtype)
        if (error := decoding_error(rounded, compiled)) > IN_C:
            raise ValueError(f"decode.c computes different logits, by {error:.0e}")
        return compiled, None
    except Exception as error:  # an edited model may raise anything
        reason = f"decoding is not compiled, and therefore slower and in float32: {error}"
        decoder, note = choose_decoder(model)
        return decoder, printable("; ".join(filter(None, (reason, note))))


def choose_decoder(model: GPT) -> tuple[Decoder, str | None]:
    """Return the model, or, if its KV cache gives other logits than its forward pass, a
    `Recomputed` model and what to tell the user. A changed layer may not expect a cache."""
    try:
        error = decoding_error(model, model)
        dtype = model.compute_dtype or model.token_embedding.weight.dtype
        if error <= (IN_BFLOAT16 if dtype == torch.bfloat16 else IN_FLOAT32):
            return model, None
        reason = f"the KV cache changes the logits by {error:.0e}"
    except Exception as failed:  # a changed model may raise anything
        reason = str(failed)
    note = f"decoding without a KV cache, and therefore slower: {reason}"
    return Recomputed(model), printable(note)


@torch.inference_mode()
def decoding_error(model: GPT, decoder: Decoder) -> float:
    """Return how far the logits of a decoder are from those of the model's forward pass, relative
    to the largest logit. It reads a whole context, its last token separately."""
    T, device = model.config.block_size, model.token_embedding.weight.device
    tokens_1T = torch.arange(T, device=device)[None] % model.token_embedding.num_embeddings
    # Predictions are more like text: a changed model may differ on few tokens.
    tokens_1T = model.forward(tokens_1T).argmax(-1)
    cache = decoder.new_cache()
    parts = [decoder.forward(part, cache) for part in tokens_1T.split(max(1, T - 1), dim=1)]
    return largest_error(torch.cat(parts, dim=1), model.forward(tokens_1T))


class Recomputed:
    """A model without a KV cache: it computes all positions again for each token."""

    def __init__(self, model: GPT) -> None:
        self.model, self.config = model, model.config

    def forward(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """Return the logits at the positions so far."""
        return self.model.forward(cache.append(tokens_BT))

    def new_cache(self) -> Cache:
        """Return a cache that keeps the tokens alone."""
        return Cache(0, 0)
