"""A checkpoint of a run, opened: the config, the tokenizer and the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import UserError
from configs.load import Config, from_plain
from data.tokenizer import Tokenizer, load_tokenizer
from model.gpt import GPT
from run.checkpoint import Header, load_checkpoint, model_tensors
from run.tensors import check_fit
from training.size import NoNumbers, check_memory, decoding_bytes, skeleton


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint, opened; it needs nothing but its file."""

    path: Path
    """The checkpoint."""

    header: Header
    config: Config
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]

    @property
    def start_token(self) -> int:
        """Where generation starts without a prompt."""
        token = self.header.corpus.get("start_token")
        if type(token) is not int or not 0 <= token < self.tokenizer.vocab_size:
            raise UserError(f"{self.path} does not say where to start; give a --prompt")
        return token

    def describe(self) -> str:
        """The checkpoint, its step and its loss in one line."""
        state = self.header.state
        loss = "not evaluated yet"
        if state.val_loss is not None:
            loss = f"validation loss {state.val_loss:.4f}"
        return f"{self.path}, step {state.step}, {loss}"

    def trained_on(self, info: dict[str, Any]) -> bool:
        """Whether a text is the one that it was trained on."""
        return bool(info.get("sha256") == self.header.corpus.get("sha256"))

    def check_weights(self) -> None:
        """Refuse weights that are not what the config describes, before a model of that size is
        made.

        Raises:
            UserError: naming the first tensor that does not fit.
        """
        expected = skeleton(self.config.model, self.tokenizer.vocab_size)
        check_fit(model_tensors(expected), "model.", self.tensors, self.path)

    def model(self, device: torch.device, batch_size: int = 1) -> GPT:
        """The model for inference. Its weights are the tensors of this, and no copy of them.

        Raises:
            UserError: when the weights are not what the config describes, or when there is no
                memory here to decode so many sequences at once.
        """
        self.check_weights()
        config, V = self.config.model, self.tokenizer.vocab_size
        what = f"a batch of {batch_size} with --model.block_size {config.block_size}"
        check_memory(what, decoding_bytes(config, batch_size, V), device)
        with NoNumbers():
            model = GPT(config, V)
        names = model.state_dict()
        model.load_state_dict({name: self.tensors[f"model.{name}"] for name in names}, assign=True)
        return model.to(device).eval()


def open_run(run: Path, which: str = "best") -> SavedRun:
    """Open a checkpoint of a run.

    Args:
        which: "best" or "last"; a run that was never evaluated has only a last one.

    Raises:
        UserError: for a checkpoint that is missing or damaged.
    """
    path = run / f"{which}.safetensors"
    if which == "best" and not path.exists():
        path = run / "last.safetensors"
    header, tensors = load_checkpoint(path)
    config = from_plain(header.config, str(path))
    try:
        tokenizer = load_tokenizer(header.tokenizer)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if header.tokenizer["kind"] != config.data.tokenizer:
        raise UserError(f"{path} is damaged: its tokenizer is not the one that its config names")
    return SavedRun(path, header, config, tokenizer, tensors)
