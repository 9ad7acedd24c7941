"""The files of strangers: read as data, bounded, and nothing in them is run."""

import io
import json
import pickle
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import UserError
from run.checkpoint import check_finite
from training.size import check_memory

MAX_TEXT = 64 << 20  # bytes of a JSON file or a pickle; GPT-2's largest has two million
TYPES = {"F32", "F16", "BF16"}


def read_json(path: Path) -> dict[str, Any]:
    """An object of JSON.

    Raises:
        UserError: when the file is missing, too large, or none.
    """
    try:
        plain = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {str(error)[:200]}") from None
    if not isinstance(plain, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return plain


def read_bytes(path: Path) -> bytes:
    """What is in a small file.

    Raises:
        UserError: when it is missing or large.
    """
    if not path.is_file():
        raise UserError(f"there is no {path}")
    if path.stat().st_size > MAX_TEXT:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes, too many for what it should be")
    return path.read_bytes()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, from model.safetensors or from the parts that its index names.

    Raises:
        UserError: for files that are missing, damaged, outside the folder, or of another type.
    """
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if not (folder / names[0]).is_file() and index.is_file():
        places = read_json(index).get("weight_map")
        names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
        if not names or any(Path(n).name != n or not n.endswith(".safetensors") for n in names):
            raise UserError(f"{index} is damaged: it should name files beside it")
    elif not (folder / names[0]).is_file():
        others = [p.name for p in folder.glob("*.bin")]
        hint = f"; {others[0]} is a pickle, which is never opened" if others else ""
        raise UserError(f"{folder} has no model.safetensors{hint}")
    tensors: dict[str, Tensor] = {}
    size = sum((folder / name).stat().st_size for name in names if (folder / name).is_file())
    check_memory(str(folder), 3 * size, torch.device("cpu"))
    for name in names:
        tensors |= read_safetensors(folder / name)
    return tensors


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, in float32 or a type that float32 holds exactly."""
    if not path.is_file():
        raise UserError(f"there is no {path}")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {}
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                kind = file.get_slice(name).get_dtype()
                if kind not in TYPES and not name.endswith(("attn.bias", "masked_bias")):  # masks
                    raise ValueError(f"{name} is of type {kind}, not of {', '.join(sorted(TYPES))}")
                tensors[name] = file.get_tensor(name).clone()
        check_finite({n: t for n, t in tensors.items() if t.is_floating_point()})
    except (SafetensorError, ValueError, FloatingPointError) as error:
        raise UserError(f"{path}: {str(error)[:200]}") from None
    return tensors


class PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries; whatever names a class is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and nothing is run here")


def read_pickle(path: Path) -> Any:
    """Plain data that was pickled.

    Raises:
        UserError: when the file is missing, damaged, or holds more than data.
    """
    content = read_bytes(path)
    try:
        return PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is no plain data: {str(error)[:200]}") from None


def read_torch(path: Path) -> dict[str, Any]:
    """What `torch.save` wrote, if it is tensors and plain data.

    Raises:
        UserError: when it is missing, damaged, or holds more.
    """
    if not path.is_file():
        raise UserError(f"there is no {path}")
    check_memory(str(path), 2 * path.stat().st_size, torch.device("cpu"))
    try:
        plain = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything, and PyTorch's advice is bad
        raise UserError(
            f"{path} is no checkpoint of tensors and plain data ({type(error).__name__}); nothing "
            f"else is opened"
        ) from None
    if not isinstance(plain, dict):
        raise UserError(f"{path} is no checkpoint: it holds no dictionary")
    return plain
