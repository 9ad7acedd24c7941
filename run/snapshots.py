"""Weights kept along the way, small enough to keep many: half precision, no optimizer.

    runs/NAME/snapshots/00000120.safetensors

They are close together in the beginning, because heads form early and fast and then refine slowly.
"""

from pathlib import Path

import torch
from torch import nn

from run.checkpoint import (
    Header,
    check_finite,
    load_checkpoint,
    load_weights,
    model_tensors,
    save_checkpoint,
)
from training.config import TrainConfig


def snapshot_steps(config: TrainConfig, parameters: int) -> list[int]:
    """Return the steps at which weights are kept: the i-th of n at (i / n)^3 of the way.

    There are `snapshots` of them, or fewer if that many would take more than `snapshot_mb`.
    """
    count = int(min(config.snapshots, config.snapshot_mb * 1e6 / (2 * parameters)))
    way = [i / (count - 1) for i in range(count)] if count > 1 else [1.0] * count
    return sorted({round(config.max_steps * part**3) for part in way})


def save_snapshot(run: Path, model: nn.Module, header: Header) -> None:
    """Keep the weights, whole or not at all.

    Raises:
        FloatingPointError: for weights that are not finite.
    """
    weights = model_tensors(model)
    check_finite(weights)
    half = torch.finfo(torch.float16)
    halves = {name: weight.clamp(half.min, half.max).half() for name, weight in weights.items()}
    path = run / "snapshots" / f"{header.state.step:08d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_checkpoint(path, halves, header)


def find_snapshots(run: Path) -> dict[int, Path]:
    """Return the snapshots of a run by their steps, in order."""
    files = sorted((run / "snapshots").glob("*.safetensors"))
    return {int(path.stem): path for path in files if path.stem.isdecimal()}


def load_snapshot(model: nn.Module, path: Path) -> None:
    """Copy the weights of a snapshot into a model.

    Raises:
        UserError: for a file that is damaged, or of another model.
    """
    _, tensors = load_checkpoint(path)
    load_weights(model, {name: tensor.float() for name, tensor in tensors.items()}, path)
