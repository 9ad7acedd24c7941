"""All that training resumes from: tensors, and a header that says what they are.

    model.NAME             weights
    optimizer.NAME.STATE   the optimizer's state of each weight
    generator.DEVICE       the random generators that dropout draws from; .1, .2 and on are those
                           of further processes

See run/tensors.py for the file itself.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError
from common.fields import make
from run.tensors import check_finite, copy_into, read_tensors, write_tensors
from training.optim import Optimizer
from training.processes import ALONE, Processes
from training.runtime import Machine
from training.state import TrainState

FORMAT = "glassgpt 6"
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
        return make(Header, json.loads(text)), tensors
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
