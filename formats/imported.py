"""The result of an import, and its comparison with the original's logits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError, as_user_error
from configs.config import Config, DataConfig, TrainConfig
from configs.load import build
from data.corpus import Corpus
from data.tokenizer import Tokenizer
from model.error import largest_error
from model.gpt import GPT
from training.checkpoint import Header, SavedRun, model_tensors
from training.machine import Machine
from training.state import TrainState

TOLERANCE = 1e-4  # of the largest logit; rounding in float32 is below 1e-5


@dataclass(frozen=True)
class Imported:
    """A model from another program, as a `GPT`."""

    model: GPT
    tokenizer: Tokenizer
    start_token: int
    """The token that generation starts from without a prompt."""

    source: str
    """The text on which the model is studied; see DataConfig."""

    original: Any
    """The original torch.nn.Module; None if its program is not installed."""

    earlier: Sequence[GPT] = ()
    """The model at earlier steps."""

    def saved(self, run: Path, word: str) -> SavedRun:
        """Return the model as the last checkpoint of a run imported from `word`."""
        tokenizer = self.tokenizer.to_dict()
        values = {"source": self.source, "tokenizer": tokenizer["kind"]}
        if tokenizer["kind"] == "bpe":
            values["vocab_size"] = self.tokenizer.vocab_size
        data = build(DataConfig, values, "--data.")
        config = Config(data, self.model.config, TrainConfig(max_steps=1))
        corpus = Corpus(f"{word}, imported", self.start_token)
        machine = Machine(
            "cpu", "unknown", torch.get_num_threads(), 1, "float32", torch.__version__
        )
        header = Header(config, tokenizer, corpus, machine, TrainState(len(self.earlier)))
        path, tensors = run / "last.safetensors", model_tensors(self.model)
        return SavedRun(path, header, self.tokenizer, tensors)


def transformers() -> Any:
    """Return the library, with its messages disabled; None if it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def load_original(name: str, folder: Path) -> Any:
    """Open a folder with this class of transformers; return None if there is no such class."""
    with as_user_error(folder):
        kind = getattr(transformers(), name, None)
        return kind and kind.from_pretrained(str(folder), local_files_only=True).float().eval()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, without dropout, inside the `with` block.

    It is not copied, because a copy of minGPT's module would call the MLPs of the original.
    """
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@torch.no_grad()
def random_logits(original: Any, V: int, T: int) -> tuple[Tensor, Tensor]:
    """Return random tokens (2, T), and the logits of a model from another program.

    Raises:
        ValueError: if it does not return logits for each position.
    """
    tokens_BT = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))
    there = tokens_BT.to(next(original.parameters()).device)
    # Logits are returned alone or first in a tuple. nanoGPT needs targets to return all positions.
    for arguments in ([there], [there, there]):
        with evaluating(original):
            found = original(*arguments)
        found = getattr(found, "logits", found)
        found = found[0] if isinstance(found, tuple) else found
        if found is not None and found.numel() == 2 * T * V:
            return tokens_BT, found.view(2, T, V).cpu()
    raise ValueError("its forward pass does not return the logits of each position")


@torch.no_grad()
def difference(
    model: GPT,
    logits_of: Callable[[int, int], tuple[Tensor, Tensor]],
    positions: int | None = None,
) -> float:
    """Return the largest difference between the logits of two models on random tokens, relative to
    the largest logit.

    Args:
        logits_of: `random_logits` of the other one.
        positions: compare the first ones only.
    """
    V, T = model.token_embedding.num_embeddings, min(model.config.block_size, 256)
    tokens_BT, logits_BTV = (each[:, :positions] for each in logits_of(V, T))
    return largest_error(logits_BTV, model(tokens_BT))


def compare_logits(model: GPT, original: Any, tried: str = "") -> str:
    """Compare the logits of two models on random tokens, and return the line that reports it.

    Args:
        tried: the choices of which none gives the original's logits, for the error.

    Raises:
        UserError: if they are not the same model.
    """
    if original is None:
        return "no other program compared the logits: transformers is not installed"
    apart = difference(model, partial(random_logits, original))
    found = f"largest difference of the logits, relative to the largest logit: {apart:.1e}"
    if not apart < TOLERANCE:
        raise UserError(
            f"{type(original).__name__} computes different logits from the same weights: "
            f"{found}{tried}"
        )
    return found
