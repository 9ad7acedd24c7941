"""A file of tensors: safetensors with a header and a checksum. No pickle anywhere.

A file is written beside its place, synced, and renamed: it is whole or it is absent. A CRC-32 of
all that it says finds a bit that changed on the disk.
"""

import math
import zlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from common.atomic import write_atomically
from common.errors import UserError
from training.size import check_memory

# The types of tensors that are saved, by their names in a file: weights and optimizer, snapshots,
# random generators.
TYPES = {"F32", "F16", "U8"}


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
