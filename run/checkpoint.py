"""One safetensors file: tensors, and a JSON header that says what they are. No pickle anywhere.

    model.NAME             weights
    optimizer.NAME.STATE   the optimizer's state of each weight
    generator.DEVICE       the random generators that dropout draws from; .1, .2 and on are those
                           of further processes

A file is written beside its place, synced, and renamed: it is whole or it is absent. What it
says is summed up in a CRC-32, so that a bit that changed on the disk is met when it is opened.
"""

import dataclasses
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from common.atomic import write_atomically
from common.errors import UserError
from training.optim import Optimizer
from training.processes import ALONE, Processes
from training.size import memory_here

FORMAT = "glassgpt 3"
GPU_GENERATORS: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.mps}


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself, as plain data: whoever loads it needs no corpus."""

    config: dict[str, Any]
    """The whole config of the run."""

    tokenizer: dict[str, Any]
    """What `load_tokenizer` reads."""

    corpus: dict[str, Any]
    """What the text was: source, sha256, number of characters and tokens."""

    step: int
    """Updates made."""

    seconds: float
    """Spent training, over all sittings."""

    train_loss: float | None
    """Of the last update's batch, in nats per token."""

    evaluated: int
    """Step of the last evaluation; 0 before the first."""

    val_loss: float | None
    """What it found, in nats per token."""

    best_val_loss: float | None
    """The lowest so far."""

    evals_since_best: int
    """Evaluations since then."""

    device: str
    """cpu, cuda or mps."""

    processor: str
    """Which GPU, or the instructions that the CPU has; they decide the last bits of a sum."""

    threads: int
    """CPU threads; their number decides them too."""

    processes: int
    """How many of them averaged their gradients."""

    precision: str
    """What it computed in."""

    torch: str
    """The version of PyTorch."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The weights, by their names in a checkpoint."""
    return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}


def training_tensors(
    model: nn.Module, optimizer: Optimizer, processes: Processes = ALONE
) -> dict[str, Tensor]:
    """All that training goes on from: weights, optimizer, the generators of all processes."""
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


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of each weight, by its names in a checkpoint."""
    return {
        f"optimizer.{name}.{key}": tensor
        for name, state in optimizer.state.items()
        for key, tensor in state.items()
    }


def save_checkpoint(path: Path, tensors: dict[str, Tensor], header: Header) -> None:
    """Write a checkpoint, whole or not at all; the one before it stays until then.

    Raises:
        UserError: when it cannot be written.
    """
    write_tensors(path, tensors, FORMAT, json.dumps(dataclasses.asdict(header)))


def refuse_not_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse to save what nobody could go on from.

    Raises:
        FloatingPointError: naming the first tensor that is not finite.
    """
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise FloatingPointError(f"{name} is no longer finite, after an update spoiled it")


def load_checkpoint(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Read a checkpoint; nothing in it is run.

    Raises:
        UserError: for a file that is missing, damaged, or not a checkpoint of this project.
    """
    header, tensors = read_tensors(path, FORMAT)
    try:
        refuse_not_finite(tensors)
        return read_header(header), tensors
    except (ValueError, RecursionError, FloatingPointError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


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
    here = memory_here(torch.device("cpu"))
    size = path.stat().st_size
    if here is not None and 2 * size > here:  # what it holds, and the model that this is copied to
        raise UserError(
            f"{path} is too large for this machine: {size / 1e9:,.0f} GB, to be held twice, and "
            f"there are {here / 1e9:,.0f} GB"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                raise UserError(f"{path} is not a file of this version ({kind})")
            # Copies: a mapped file could not be replaced on Windows, and would change under us.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if metadata["crc32"] != checksum(metadata["header"], tensors):
            raise ValueError("it is not what was written (its checksum is another one)")
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


def read_header(text: str) -> Header:
    """Parse a header.

    Raises:
        ValueError: when a field is missing, unknown, or of another type.
    """
    plain = json.loads(text)
    hints = get_type_hints(Header)
    if not isinstance(plain, dict) or plain.keys() != hints.keys():
        raise ValueError(f"its header should have the fields {', '.join(hints)}")
    for name, hint in hints.items():
        kind = dict if get_origin(hint) is dict else hint
        if not isinstance(plain[name], kind) or isinstance(plain[name], bool):
            raise ValueError(f"{name} in its header is {plain[name]!r}")
    header = Header(**plain)
    for name, holds in {
        "step": 0 <= header.step < 2**63,
        "evaluated": 0 <= header.evaluated <= header.step,
        "threads": header.threads >= 1,
        "processes": header.processes >= 1,
        "seconds": 0 <= header.seconds < 1e15,
        "train_loss": header.step == 0 or header.train_loss is not None,
        "val_loss": header.evaluated == 0 or header.val_loss is not None,
        "best_val_loss": header.evaluated == 0 or header.best_val_loss is not None,
        "evals_since_best": 0 <= header.evals_since_best < 2**63,
    }.items():
        if not holds:
            raise ValueError(f"{name} in its header is {plain[name]!r}")
    return header


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


@torch.no_grad()
def copy_into(
    expected: dict[str, Tensor], prefix: str, tensors: dict[str, Tensor], path: Path
) -> None:
    """Copy the tensors of that prefix into those expected, which must be the same ones."""
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    for name in sorted(expected.keys() | found.keys()):
        want, have = describe(expected.get(name)), describe(found.get(name))
        if want != have:
            raise UserError(
                f"{path} does not fit its own config: {name} is {have}, should be {want}"
            )
    for name, tensor in expected.items():
        tensor.copy_(found[name])


def describe(tensor: Tensor | None) -> str:
    """Shape and type, for a message."""
    if tensor is None:
        return "absent"
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
