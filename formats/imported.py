"""What an import makes, and how far its logits are from the original's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common.errors import UserError, reading
from data.tokenizer import Tokenizer
from model.gpt import GPT

TOLERANCE = 1e-4  # of the largest logit; rounding in float32 is below 1e-5


@dataclass(frozen=True)
class Imported:
    """A model from elsewhere, as one of ours."""

    model: GPT
    tokenizer: Tokenizer
    start_token: int
    """Where generation starts without a prompt."""

    source: str
    """The text that it is studied on; see DataConfig."""

    original: Any
    """The model as transformers computes it, a torch.nn.Module; None without that library."""


def start_of(tokenizer: Tokenizer) -> int:
    """Return the token that texts begin after: <|endoftext|>, a newline, or else the first."""
    labels = tokenizer.labels
    return next((labels.index(t) for t in ("<|endoftext|>", "\n") if t in labels), 0)


def transformers() -> Any:
    """Return the library, which says nothing; None if it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def load_original(name: str, folder: Path) -> Any:
    """Return the model of a folder as that class of transformers computes it; None without it."""
    with reading(folder):
        kind = getattr(transformers(), name, None)
        return kind and kind.from_pretrained(str(folder), local_files_only=True).float().eval()


@torch.no_grad()
def compare_logits(ours: GPT, theirs: Any) -> str:
    """Compare the logits of two models on random tokens, and return what to say of it.

    Raises:
        UserError: if they are not the same model.
    """
    if theirs is None:
        return "logits not compared: transformers is not installed"
    V, T = ours.token_embedding.num_embeddings, min(ours.config.block_size, 256)
    tokens_BT = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))
    logits_BTV = ours(tokens_BT)
    difference = (logits_BTV - theirs(tokens_BT).logits).abs().max() / logits_BTV.abs().max()
    found = f"largest difference of the logits, as a fraction of the largest: {difference:.1e}"
    if not difference < TOLERANCE:
        raise UserError(f"{type(theirs).__name__} computes other logits from the weights: {found}")
    return found
