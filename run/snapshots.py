"""Weights kept along the way, small enough to keep many: half precision, no optimizer.

    runs/NAME/snapshots/00000120.safetensors

They lie close together in the beginning, because heads form early and fast and then refine slowly.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from model.gpt import GPT
from run.checkpoint import check_finite, copy_into, model_tensors, read_tensors, write_tensors
from training.config import TrainConfig

FORMAT = "glassgpt snapshot 2"


def snapshot_steps(
    config: TrainConfig, parameters: int, at: int = 0, taken: Sequence[int] = ()
) -> list[int]:
    """The steps at which weights are kept: the i-th of n at (i / n)^3 of the way.

    As many as `snapshots` says, or fewer if that many would take more than `snapshot_mb`.

    Args:
        at: where the run stands.
        taken: steps of snapshots that are there already; those up to `at` take up room.
    """
    size = 2 * parameters / 1e6
    count = int(min(config.snapshots, config.snapshot_mb / size))
    if count < 3:
        steps = [config.max_steps, 0][:count][::-1]
    else:
        steps = sorted({round(config.max_steps * (i / (count - 1)) ** 3) for i in range(count)})
    there = {step for step in taken if step <= at}  # later ones are of a past that was taken back
    ahead = [step for step in steps if step >= at and step not in there]
    return ahead[max(0, len(ahead) + len(there) - count) :]


class Snapshots:
    """Takes the snapshots of a run while it trains."""

    def __init__(self, run: Path, model: GPT, config: TrainConfig, step: int, silent: bool) -> None:
        """
        Args:
            step: where the run stands.
            silent: take none, because another process does.
        """
        self.run, self.model = run, model
        taken = list(find_snapshots(run))
        steps = snapshot_steps(config, model.num_parameters(), step, taken)
        self.steps = [] if silent else steps

    def save_if_due(self, step: int) -> None:
        """Keep the weights after `step` updates, if that is one of the steps to keep."""
        if step in self.steps:
            save_snapshot(self.run, step, self.model)


def save_snapshot(run: Path, step: int, model: nn.Module) -> None:
    """Keep the weights after `step` updates, whole or not at all.

    Raises:
        FloatingPointError: for weights that are not finite.
        UserError: when they cannot be written.
    """
    check_finite(model_tensors(model))
    half = torch.finfo(torch.float16)
    tensors = {
        name: tensor.detach().clamp(half.min, half.max).half()
        for name, tensor in model_tensors(model).items()
    }
    path = run / "snapshots" / f"{step:08d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    write_tensors(path, tensors, FORMAT)


def find_snapshots(run: Path) -> dict[int, Path]:
    """The snapshots of a run by their steps, in order."""
    files = (run / "snapshots").glob("*.safetensors")
    return {int(path.stem): path for path in sorted(files) if re.fullmatch(r"\d+", path.stem)}


def load_snapshot(model: nn.Module, path: Path) -> None:
    """Put the weights of a snapshot into a model of exactly that shape.

    Raises:
        UserError: for a file that is damaged, or of another model.
    """
    _, tensors = read_tensors(path, FORMAT)
    whole = {name: tensor.float() for name, tensor in tensors.items()}
    copy_into(model_tensors(model), "model.", whole, path)
