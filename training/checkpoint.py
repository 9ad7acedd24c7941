"""Checkpoints: the state that training resumes from, and runs opened from a checkpoint.

A checkpoint is a safetensors file with a header; no pickle anywhere. It holds

    model.NAME             weights
    optimizer.NAME.STATE   the optimizer's state of each weight

A checksum of the header and the tensors is compared when the file is opened. Random numbers and
the place in the text need not be saved: they follow from the seed and the number of steps.

Snapshots are checkpoints of the weights alone in half precision, small enough to keep many:
runs/NAME/snapshots/00000120.safetensors.
"""

import dataclasses
import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from common.atomic import write_atomically
from common.errors import UserError, as_user_error, printable
from configs.config import STRICT, Config, first_error
from data.corpus import Corpus
from data.tokenizer import Tokenizer, load_tokenizer
from model.gpt import GPT
from training.folder import find_run
from training.machine import Machine
from training.optim import Optimizer
from training.state import TrainState

FORMAT = "glassgpt 1"


# --- what a checkpoint holds ---------------------------------------------------------------------


@dataclass(frozen=True, config=STRICT)
class Header:
    """The description of a checkpoint, with which it can be opened without the text. Of a run that
    trains, all but `state` is constant."""

    config: Config

    tokenizer: dict[str, Any]
    """Plain data for `load_tokenizer`."""

    corpus: Corpus
    machine: Machine
    state: TrainState


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights by their names in a checkpoint."""
    return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state of each weight by its names in a checkpoint."""
    return {
        f"optimizer.{name}.{key}": tensor
        for name, state in optimizer.state.items()
        for key, tensor in state.items()
    }


def read_header(text: str) -> Header:
    """Read a header from JSON. A missing field has its default; an unknown field is an error.

    Raises:
        ValueError: if it is not a header.
    """
    try:
        return TypeAdapter(Header).validate_json(text)
    except ValidationError as error:
        raise ValueError(" ".join(first_error(error))) from None


def check_finite(tensors: dict[str, Tensor], where: str = "") -> None:
    """Reject tensors with NaN or infinity.

    Raises:
        FloatingPointError: naming, after `where`, the first tensor that is not finite.
    """
    for name, tensor in tensors.items():
        # Minimum and maximum are NaN if any number is. This takes a ninth of the time of isfinite.
        if tensor.numel() and not all(map(math.isfinite, tensor.aminmax())):
            raise FloatingPointError(f"{where}{name} is not finite")


def checksum(header: str, tensors: dict[str, Tensor]) -> str:
    """Return the CRC-32 of the header and of the tensors, sorted by name."""
    crc = zlib.crc32(header.encode())
    for _, tensor in sorted(tensors.items()):
        crc = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, crc)
    return str(crc)


# --- saving and loading --------------------------------------------------------------------------


def save_checkpoint(path: Path, tensors: dict[str, Tensor], header: Header) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: if it cannot be written; the previous checkpoint is unchanged.
    """
    path.parent.mkdir(exist_ok=True)  # the folder of snapshots
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(dataclasses.asdict(header))
    metadata = {"format": FORMAT, "header": text, "checksum": checksum(text, tensors)}
    write_atomically(path, save(tensors, metadata))


def save_in_run(folder: Path | None, name: str, tensors: dict[str, Tensor], header: Header) -> None:
    """Check the tensors, and save them as a checkpoint of the run that trains.

    Args:
        folder: None in a process that only checks.

    Raises:
        FloatingPointError: if a number is not finite; nothing is saved.
    """
    check_finite(tensors, f"at step {header.state.step}: ")
    if folder:
        save_checkpoint(folder / f"{name}.safetensors", tensors, header)


def load_checkpoint(path: Path, weights: bool = True) -> tuple[Header, dict[str, Tensor]]:
    """Read a checkpoint without executing anything in it.

    Args:
        weights: if False, read only the header, and return no tensors.

    Raises:
        UserError: for a file that is missing, damaged, or not a checkpoint of this project.
    """
    with as_user_error(path, "cannot be opened"), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise UserError(f"{path} is not a checkpoint of this version ({FORMAT})")
        header = read_header(metadata["header"])
        if not weights:
            return header, {}
        # Copy the tensors: Windows cannot replace a mapped file, and its content could change.
        tensors = {name: file.get_tensor(name).clone() for name in list(file.keys())}
        if metadata["checksum"] != checksum(metadata["header"], tensors):
            raise ValueError("its checksum is wrong")
        check_finite(tensors)
        return header, tensors


@torch.no_grad()
def copy_into(expected: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    """Copy the tensors of a checkpoint into the expected ones, which are all those of a model, or
    all those of an optimizer.

    Raises:
        UserError: naming the first tensor that is missing, unknown, or has the wrong shape or type.
    """
    kind = min(expected).split(".")[0]  # model or optimizer
    for name in sorted(expected.keys() | tensors.keys()):
        if name.startswith(kind):
            have, want = (
                f"{each[name].dtype} {tuple(each[name].shape)}" if name in each else "absent"
                for each in (tensors, expected)
            )
            if have != want:
                raise UserError(
                    f"{path} does not match its config: {name} is {have}, expected {want}"
                )
            expected[name].copy_(tensors[name])


# --- snapshots -----------------------------------------------------------------------------------


def half_precision(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model as a snapshot keeps them."""
    limit = torch.finfo(torch.float16).max
    weights = model_tensors(model)
    return {name: weight.clamp(-limit, limit).half() for name, weight in weights.items()}


def load_snapshot(model: nn.Module, path: Path) -> None:
    """Copy the weights of a snapshot into a model.

    Raises:
        UserError: for a file that is damaged or has another model.
    """
    _, tensors = load_checkpoint(path)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    copy_into(model_tensors(model), tensors, path)


# --- a run, opened -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """An opened checkpoint, which needs no other file."""

    path: Path
    """The checkpoint."""

    header: Header
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]

    @property
    def config(self) -> Config:
        return self.header.config

    @property
    def start_token(self) -> int:
        """The token that generation starts from without a prompt."""
        return self.header.corpus.start_token

    def __str__(self) -> str:
        """Describe the checkpoint, its step and its loss in one line."""
        state = self.header.state
        loss = "not evaluated yet"
        if state.val_loss is not None:
            loss = f"validation loss {state.val_loss:.4f} nats/{self.tokenizer.unit}"
            if state.last_eval_step != state.step:
                loss += f" at step {state.last_eval_step}"
        return printable(f"{self.path}, step {state.step}, {loss}")

    @property
    def origin(self) -> str:
        """A line about the weights for a run that starts from them."""
        return f"\nweights: {self}, trained on {printable(self.header.corpus.source)}"

    def new_characters(self, tokenizer: Tokenizer) -> str:
        """Return a line with what a tokenizer adds to this run's vocabulary, or an empty text.

        Raises:
            UserError: if the model cannot get rows for them.
        """
        new = tokenizer.labels[self.tokenizer.vocab_size :]
        if new and self.config.model.ngrams > 1:  # whose rows depend on the number of tokens
            raise UserError("a model with n-gram embeddings cannot get new characters")
        return f"\nnew characters: {printable(' '.join(map(repr, new)))}" if new else ""

    def restore(self, model: GPT, optimizer: Optimizer | None = None) -> None:
        """Copy the weights into a model, which keeps its own rows for new characters, and the
        optimizer's state into an optimizer.

        Raises:
            UserError: if they do not match the config.
        """
        expected, V = model_tensors(model), self.tokenizer.vocab_size
        for name in ("model.token_embedding.weight", "model.head.weight", "model.head.bias"):
            if name in expected:
                expected[name] = expected[name][:V]
        copy_into(expected, self.tensors, self.path)
        if optimizer:
            copy_into(optimizer_tensors(optimizer), self.tensors, self.path)

    def model(self, device: str = "cpu") -> GPT:
        """Return the model for inference.

        Raises:
            UserError: if the weights do not match the config.
        """
        model = GPT(self.config.model, self.tokenizer.vocab_size)
        self.restore(model)
        return model.to(device).eval()


def open_run(run: str | Path | None, which: str = "best", weights: bool = True) -> SavedRun:
    """Open a checkpoint of a run.

    Args:
        run: see `find_run`.
        which: "best" or "last"; a run without evaluations has only a last checkpoint.
        weights: see `load_checkpoint`.

    Raises:
        UserError: for a checkpoint that is missing or damaged.
    """
    folder = find_run(run)
    path = folder / f"{which}.safetensors"
    if not path.exists():
        path = folder / "last.safetensors"
    header, tensors = load_checkpoint(path, weights)
    with as_user_error(path, "cannot be opened"):
        tokenizer = load_tokenizer(header.tokenizer)
        if header.corpus.start_token >= tokenizer.vocab_size:
            raise ValueError("its start_token is not a token")
    return SavedRun(path, header, tokenizer, tensors)
