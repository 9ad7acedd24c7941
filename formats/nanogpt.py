"""nanoGPT's checkpoints: out/ckpt.pt, and the meta.pkl of its dataset, with the vocabulary."""

import pickle
import warnings
from pathlib import Path
from typing import Any, NoReturn

import torch

from common.errors import UserError, as_user_error
from data.tokenizer import CharTokenizer, Tokenizer
from formats.imported import Imported, transformers
from formats.names import NANOGPT, short
from formats.tokenizers import read_tokenizer


def read_nanogpt(path: Path, tokens: Path | None = None) -> Imported:
    """Read a checkpoint.

    Args:
        tokens: its meta.pkl, or a folder with GPT-2's tokenizer; by default the meta.pkl of the
            dataset that the checkpoint names, in nanoGPT's data folder.

    Raises:
        UserError: for files that are missing, damaged, or contain code.
    """
    plain = load_plain(path)
    if not {"model", "model_args"} <= plain.keys():
        raise UserError(
            f"{path} is not a checkpoint of nanoGPT: it has no model_args; for your own GPT, use "
            f"show(model, text), see docs/models.md"
        )
    model = NANOGPT.import_model(plain["model_args"], plain["model"], path)
    V = model.token_embedding.num_embeddings
    meta = tokens or find_meta(path, plain)
    tokenizer: Tokenizer = read_tokenizer(meta, V) if meta.is_dir() else read_meta(meta, V)
    text = meta.parent / "input.txt"
    source = str(text.resolve()) if text.is_file() else "pydocs"
    return Imported(model, tokenizer, tokenizer.start_token(), source, original(plain))


def load_plain(path: Path) -> dict[str, Any]:
    """Read a dictionary written by torch.save; reject pickles with anything but tensors and plain
    data."""
    with open(path, "rb") as file, warnings.catch_warnings(action="ignore"):
        try:
            plain = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # PyTorch's message recommends an unsafe load
            raise UserError(
                f"{path} is not a file of tensors and plain data ({type(error).__name__})"
            ) from error
    if not isinstance(plain, dict):
        raise UserError(f"{path} is not a checkpoint: expected a dictionary")
    return plain


def find_meta(path: Path, plain: dict[str, Any]) -> Path:
    """Return the meta.pkl of the dataset that a checkpoint names.

    Raises:
        UserError: if it is not in nanoGPT's data folder.
    """
    with as_user_error(path):
        name = Path(plain["config"]["dataset"]).name
    meta = path.absolute().parent.parent / "data" / name / "meta.pkl"
    if not meta.is_file():
        raise UserError(
            f"there is no {meta}; pass --tokenizer meta.pkl, or --tokenizer FOLDER with GPT-2's "
            f"tokenizer.json"
        )
    return meta


class PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries, and rejects pickles that name a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not executed")


def read_meta(path: Path, V: int) -> CharTokenizer:
    """Read the characters of a meta.pkl.

    Raises:
        UserError: if it is damaged, or does not have V characters.
    """
    with open(path, "rb") as file, as_user_error(path):
        itos = PlainUnpickler(file).load()["itos"]
        chars = [itos[i] for i in range(len(itos))]
        if len(chars) != V or sorted({*"".join(chars)}) != sorted(chars):
            raise ValueError(f"its itos must be {V} distinct characters")
        return CharTokenizer("".join(chars))


def original(plain: dict[str, Any]) -> Any:
    """Return the checkpoint as a GPT-2 of transformers, which has transposed matrices; None if
    transformers is not installed."""
    library = transformers()
    if library is None:
        return None
    args, weights = plain["model_args"], {short(n): w for n, w in plain["model"].items()}
    config = library.GPT2Config(
        activation_function="gelu",
        n_positions=args["block_size"],
        tie_word_embeddings="lm_head.weight" not in weights,
        **{name: args[name] for name in ("n_layer", "n_head", "n_embd", "vocab_size")},
    )
    made = library.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            found = weights.get(short(name), torch.zeros(()))  # biases may be absent
            weight.copy_(found.t() if ".c_" in name and found.dim() == 2 else found)
    return made
