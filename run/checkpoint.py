"""Checkpoints: all that training resumes from, and the run that is opened from one.

A file of tensors is safetensors with a header and a checksum; no pickle anywhere. It is written
beside its place, synced, and renamed: it is whole or it is absent. A checkpoint holds

    model.NAME             weights
    optimizer.NAME.STATE   the optimizer's state of each weight
    generator.DEVICE       the random generators that dropout draws from; .1, .2 and on are those
                           of further processes
"""

import dataclasses
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from common.atomic import write_atomically
from common.errors import UserError
from common.fields import STRICT, read_json
from configs.load import Config
from data.tokenizer import Tokenizer, load_tokenizer
from model.gpt import GPT
from training.optim import Optimizer
from training.processes import ALONE, Processes
from training.runtime import Machine
from training.size import NoNumbers, check_memory, decoding_bytes, skeleton
from training.state import TrainState

FORMAT = "glassgpt 7"
GPU_GENERATORS: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.mps}
# The types of tensors that are saved, by their names in a file: weights and optimizer, snapshots,
# random generators.
TYPES = {"F32", "F16", "U8"}


# --- files of tensors ----------------------------------------------------------------------------


def write_tensors(path: Path, tensors: dict[str, Tensor], kind: str, header: str = "") -> None:
    """Write a file of tensors, whole or not at all.

    Raises:
        UserError: when it cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"format": kind, "header": header, "crc32": checksum(header, tensors)}
    try:
        write_atomically(path, save(tensors, metadata))
    except OSError as error:
        raise UserError(
            f"could not write {path}: {error.strerror}; what was there is untouched"
        ) from error


def read_tensors(path: Path, kind: str) -> tuple[str, dict[str, Tensor]]:
    """The header and the tensors that `write_tensors` wrote.

    Raises:
        UserError: for a file that is missing, damaged, or of another kind.
    """
    if not path.is_file():
        raise UserError(f"there is no {path}")
    # Twice: what it holds, and the model that this is copied to.
    check_memory(str(path), 2 * path.stat().st_size, torch.device("cpu"))
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                raise UserError(f"{path} is not a file of this version ({kind})")
            names = list(file.keys())
            for name in names:
                if file.get_slice(name).get_dtype() not in TYPES:
                    raise ValueError(f"{name} is of a type that is never saved")
            # Copies: a mapped file could not be replaced on Windows, and would change under us.
            tensors = {name: file.get_tensor(name).clone() for name in names}
        if metadata["crc32"] != checksum(metadata["header"], tensors):
            raise ValueError("it is not what was written (wrong checksum)")
        return metadata["header"], tensors
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def checksum(header: str, tensors: dict[str, Tensor]) -> str:
    """CRC-32 of all that a file says. It finds what chance changed, not what a forger did."""
    value = zlib.crc32(header.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {describe(tensor)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def describe(tensor: Tensor | None) -> str:
    """Shape and type, for a message."""
    if tensor is None:
        return "absent"
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse to save, or to use, what nobody could train further.

    Raises:
        FloatingPointError: naming the first tensor that is not finite.
    """
    for name, tensor in tensors.items():
        # Minimum and maximum are NaN if any number is: a ninth of the time of testing each.
        if tensor.numel() and not all(map(math.isfinite, tensor.aminmax())):
            raise FloatingPointError(f"{name} is not finite (NaN or Inf)")


def check_fit(
    expected: dict[str, Tensor], prefix: str, tensors: dict[str, Tensor], path: Path
) -> None:
    """Refuse tensors of that prefix that are not the expected ones.

    Raises:
        UserError: naming the first that is missing, unknown, or of another shape or type.
    """
    found = {name for name in tensors if name.startswith(prefix)}
    for name in sorted(expected.keys() | found):
        want, have = describe(expected.get(name)), describe(tensors.get(name))
        if want != have:
            raise UserError(
                f"{path} does not fit its own config: {name} is {have}, should be {want}"
            )


@torch.no_grad()
def copy_into(
    expected: dict[str, Tensor], prefix: str, tensors: dict[str, Tensor], path: Path
) -> None:
    """Copy the tensors of that prefix into the expected ones; for its errors see `check_fit`."""
    check_fit(expected, prefix, tensors, path)
    for name, tensor in expected.items():
        tensor.copy_(tensors[name])


@dataclass(frozen=True, config=STRICT)
class Header:
    """What a checkpoint says of itself, as plain data: whoever loads it needs no corpus."""

    config: Config

    tokenizer: dict[str, Any]
    """What `load_tokenizer` reads."""

    corpus: dict[str, Any]
    """What the text was: source, sha256, number of characters and tokens."""

    machine: Machine
    state: TrainState


# --- what is saved -------------------------------------------------------------------------------


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The weights, by their names in a checkpoint."""
    return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of each weight, by its names in a checkpoint."""
    return {
        f"optimizer.{name}.{key}": tensor
        for name, state in optimizer.state.items()
        for key, tensor in state.items()
    }


def training_tensors(
    model: nn.Module, optimizer: Optimizer, processes: Processes = ALONE
) -> dict[str, Tensor]:
    """All that training resumes from: weights, optimizer, the generators of all processes."""
    states = {"cpu": torch.get_rng_state()}
    device = next(model.parameters()).device.type
    if device in GPU_GENERATORS:
        states[device] = GPU_GENERATORS[device].get_rng_state()
    generators = {
        generator_name(kind, rank): state
        for kind, own in states.items()
        for rank, state in enumerate(processes.gather(own))
    }
    return model_tensors(model) | optimizer_tensors(optimizer) | generators


def generator_name(kind: str, rank: int) -> str:
    """The name of a process's generator in a checkpoint; the first's has no number."""
    return f"generator.{kind}.{rank}" if rank else f"generator.{kind}"


class Checkpointer:
    """Saves a run while it trains. Where there are several processes, all of them call it at the
    same steps, each checks what it holds, and the first one writes."""

    def __init__(
        self,
        run: Path,
        model: nn.Module,
        optimizer: Optimizer,
        processes: Processes,
        header: Callable[[], Header],
        before: Callable[[], None],
    ) -> None:
        """
        Args:
            header: what a checkpoint says of itself now.
            before: is called before each checkpoint.
        """
        self.run, self.model, self.optimizer = run, model, optimizer
        self.processes, self.header, self.before = processes, header, before
        self.saved: tuple[int, int] | None = None  # the last checkpoint's step, and evaluated

    def save_last(self) -> None:
        """Save all that training resumes from, if that is not what was saved last.

        Raises:
            FloatingPointError: for a number that is not finite; nothing is saved.
            UserError: when it cannot be written.
        """
        state = self.header().state
        if self.saved != (state.step, state.last_eval_step):
            self.save("last", training_tensors(self.model, self.optimizer, self.processes))
            self.saved = state.step, state.last_eval_step

    def save_best(self) -> None:
        """Save the weights of the best evaluation; for its errors see `save_last`."""
        self.save("best", model_tensors(self.model))

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        check_finite(tensors)
        if self.processes.is_main:
            self.before()
            save_checkpoint(self.run / f"{name}.safetensors", tensors, self.header())


# --- checkpoints ---------------------------------------------------------------------------------


def save_checkpoint(path: Path, tensors: dict[str, Tensor], header: Header) -> None:
    """Write a checkpoint, whole or not at all; the one before it stays until then.

    Raises:
        UserError: when it cannot be written.
    """
    write_tensors(path, tensors, FORMAT, json.dumps(dataclasses.asdict(header)))


def load_checkpoint(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Read a checkpoint; nothing in it is run.

    Raises:
        UserError: for a file that is missing, damaged, or not a checkpoint of this project.
    """
    text, tensors = read_tensors(path, FORMAT)
    try:
        check_finite(tensors)
        return read_json(Header, text), tensors
    except (ValueError, RecursionError, FloatingPointError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put the weights of a checkpoint into a model of exactly that shape.

    Raises:
        UserError: naming the first tensor that is missing, unknown, or of another shape or type.
    """
    copy_into(model_tensors(model), "model.", tensors, path)


def load_training(
    model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], path: Path, rank: int = 0
) -> None:
    """Put back all that `training_tensors` took. A process that was not there then keeps the
    generators it has.

    Raises:
        UserError: see `load_weights`.
    """
    load_weights(model, tensors, path)
    copy_into(optimizer_tensors(optimizer), "optimizer.", tensors, path)
    try:
        if rank == 0 or generator_name("cpu", rank) in tensors:
            torch.set_rng_state(tensors[generator_name("cpu", rank)])
        device = next(model.parameters()).device.type
        if generator_name(device, rank) in tensors and device in GPU_GENERATORS:
            GPU_GENERATORS[device].set_rng_state(tensors[generator_name(device, rank)])
    except (KeyError, RuntimeError, TypeError) as error:
        raise UserError(f"{path} has no usable state of the random generator: {error}") from error


# --- a run, opened -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
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
    config = header.config
    try:
        tokenizer = load_tokenizer(header.tokenizer)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if header.tokenizer["kind"] != config.data.tokenizer:
        raise UserError(f"{path} is damaged: its tokenizer is not the one that its config names")
    return SavedRun(path, header, config, tokenizer, tensors)
