"""nanoGPT's checkpoints: out/ckpt.pt, and the meta.pkl of its data set, which has its tokens."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import UserError
from common.fields import brief
from data.bpe import BPETokenizer
from data.tokenizer import CharTokenizer, Tokenizer
from formats.architecture import Fields, has_biases
from formats.files import read_pickle, read_torch
from formats.gpt2 import NanoGPT
from formats.imported import Imported
from formats.tokenizers import read_tokenizer
from model.config import ModelConfig


def read_nanogpt(path: Path, tokenizer: Path | None = None) -> Imported:
    """The model of a checkpoint.

    Args:
        tokenizer: its meta.pkl, or a folder with GPT-2's tokenizer; without it, the meta.pkl of the
            data set that the checkpoint names, beside its folder as nanoGPT has it.

    Raises:
        UserError: for files that are missing or damaged, or hold more than data.
    """
    plain = read_torch(path)
    arguments, weights = plain.get("model_args"), plain.get("model")
    if not isinstance(arguments, dict) or not isinstance(weights, dict):
        raise UserError(f"{path} is no checkpoint of nanoGPT: it has no model_args, or no model")
    tensors = {str(n).removeprefix("_orig_mod."): t for n, t in weights.items()}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not lies_in_memory(tensor):
            raise UserError(f"{path}: {name} holds no numbers of its own")
        if not tensor.isfinite().all():
            raise UserError(f"{path}: {brief(name)} is not finite (NaN or Inf)")
    arch, fields = NanoGPT(), Fields(arguments, str(path))
    tensors, V = arch.clean(tensors), fields.size("vocab_size")
    try:
        config = ModelConfig(
            block_size=fields.size("block_size"),
            n_layer=fields.size("n_layer"),
            n_head=fields.size("n_head"),
            n_embd=fields.size("n_embd"),
            positions="learned",
            activation="gelu",
            qk_norm=False,
            tie_embeddings=True,
            zero_init=False,
            bias=has_biases(tensors),
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    made = arch.import_weights(config, V, tensors, str(path))
    meta = tokenizer or find_meta(path, plain)
    known: Tokenizer = read_tokenizer(meta, V) if meta.is_dir() else read_meta(meta)
    if known.vocab_size != V:
        raise UserError(f"{meta} has {known.vocab_size} tokens, and the model of {path} knows {V}")
    text = meta.parent / "input.txt"
    source = str(text.resolve()) if text.is_file() else "pydocs"
    if isinstance(known, CharTokenizer):
        start = known.chars.find("\n")
    else:
        start = known.vocabulary.get("<|endoftext|>", 0) if isinstance(known, BPETokenizer) else 10
    return Imported(config, made, known, max(0, start), source, compute_as_gpt2(arguments, tensors))


def lies_in_memory(tensor: Tensor) -> bool:
    """Whether it is a plain tensor, with a place in memory for each number."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    size = tensor.numel() * tensor.element_size()
    return tensor.is_floating_point() and tensor.untyped_storage().nbytes() >= size


def find_meta(path: Path, plain: dict[str, Any]) -> Path:
    """The meta.pkl of a checkpoint's data set.

    Raises:
        UserError: when it is not where nanoGPT has it.
    """
    config = plain.get("config")
    name = str(config.get("dataset")) if isinstance(config, dict) else ""
    meta = path.absolute().parent.parent / "data" / Path(name).name / "meta.pkl"
    if not meta.is_file():
        raise UserError(
            f"there is no {meta}; say which tokens {path} knows: --tokenizer meta.pkl, or "
            f"--tokenizer FOLDER with GPT-2's tokenizer.json"
        )
    return meta


def read_meta(path: Path) -> CharTokenizer:
    """The characters of a meta.pkl.

    Raises:
        UserError: when it has none.
    """
    plain = read_pickle(path)
    itos = plain.get("itos") if isinstance(plain, dict) else None
    chars = [itos.get(i) for i in range(len(itos))] if isinstance(itos, dict) else []
    if chars and all(isinstance(char, str) and len(char) == 1 for char in chars):
        text = "".join(map(str, chars))
        if len(set(text)) == len(text):
            return CharTokenizer(text)
    raise UserError(f"{path} has no itos of single characters, numbered from 0 on")


def compute_as_gpt2(arguments: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The checkpoint as transformers computes a GPT-2, put together without our table of names;
    None where that library is not installed."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel, logging
    except ImportError:
        return None
    logging.set_verbosity_error()
    sizes = {name: arguments[name] for name in ("n_layer", "n_head", "n_embd", "vocab_size")}
    settings = GPT2Config(
        **sizes,
        n_positions=arguments["block_size"],
        activation_function="gelu",
    )
    model = GPT2LMHeadModel(settings)
    state = model.state_dict()
    for name, tensor in state.items():
        theirs = tensors.get(name)
        if theirs is None:
            tensor.zero_()  # a bias that nanoGPT was told to leave out
        else:
            tensor.copy_(theirs.t() if ".h." in name and theirs.dim() == 2 else theirs)
    return model.eval()
