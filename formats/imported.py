"""What an import makes: all that a run's checkpoint says."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from data.tokenizer import Tokenizer
from model.config import ModelConfig
from model.gpt import GPT


@dataclass(frozen=True)
class Imported:
    """A model from elsewhere, as one of ours."""

    config: ModelConfig
    weights: dict[str, Tensor]
    """By our names."""
    tokenizer: Tokenizer
    start_token: int
    """Where generation starts without a prompt."""
    source: str
    """The text that it is studied on; see DataConfig."""
    original: Any = None
    """The model as transformers computes it, a torch.nn.Module; None without that library."""

    def model(self) -> GPT:
        """The model of ours."""
        model = GPT(self.config, self.tokenizer.vocab_size)
        model.load_state_dict(self.weights)
        return model.eval()


@torch.no_grad()
def largest_differences(ours: GPT, theirs: Any) -> dict[str, float]:
    """The largest difference of the logits of two models on two sequences of random tokens, as a
    fraction of the largest logit, in float32 and in float64.

    transformers tabulates rotations in float32, of angles that are rounded already. So that float64
    says whether the rest is the same, that computes with our table. (Its RMSNorm too computes in
    float32, so that of a Llama float64 says no more.)
    """
    V, T = ours.token_embedding.num_embeddings, min(ours.config.block_size, 256)
    tokens = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))
    found = {}
    for dtype in (torch.float32, torch.float64):
        ours, theirs = ours.to(dtype), theirs.to(dtype)
        if dtype == torch.float64 and ours.rotary is not None:
            half = ours.rotary.sin.size(1) // 2
            sin = torch.cat([ours.rotary.sin[:T, half:]] * 2, dim=1)
            table = ours.rotary.cos[None, :T], sin[None]
            theirs.model.rotary_emb.forward = lambda x, position_ids, table=table: table
        logits = ours(tokens)
        difference = (logits - theirs(tokens).logits).abs().max() / logits.abs().max()
        found[str(dtype).removeprefix("torch.")] = float(difference)
    return found
