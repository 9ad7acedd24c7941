"""A folder as the library `transformers` reads and writes it: config.json, generation_config.json,
model.safetensors, tokenizer.json, tokenizer_config.json."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from common.errors import UserError
from common.fields import brief
from data.bpe import BPETokenizer
from formats.architecture import Architecture, Fields
from formats.files import read_json, read_weights
from formats.gpt2 import GPT2
from formats.imported import Imported
from formats.llama import Llama
from formats.persimmon import Persimmon
from formats.tokenizers import read_tokenizer, tokenizer_config, tokenizer_json
from model.config import ModelConfig
from run.checkpoint import SavedRun

ARCHITECTURES: list[Architecture] = [GPT2(), Persimmon(), Llama()]
FILES = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json", "vocab.json",
         "merges.txt"]  # fmt: skip


def architecture_for(config: ModelConfig) -> Architecture:
    """The architecture that computes what a config says.

    Raises:
        UserError: naming the field for which there is none.
    """
    obstacles = {arch.class_name: arch.obstacle(config) for arch in ARCHITECTURES}
    for arch in ARCHITECTURES:
        if obstacles[arch.class_name] is None:
            return arch
    # The nearest is the one that has the positions.
    near = "GPT2LMHeadModel" if config.positions == "learned" else "PersimmonForCausalLM"
    if config.positions == "rotary" and config.norm == "rmsnorm":
        near = "LlamaForCausalLM"
    raise UserError(
        f"transformers has no class of its own for {obstacles[near]} "
        f"(the nearest is {near}); such a run cannot be exported"
    )


def write_folder(saved: SavedRun, folder: Path) -> Architecture:
    """Export a run, whole or not at all; the architecture that it became.

    Raises:
        UserError: for a folder that is there already, and see `architecture_for`.
    """
    config, tokenizer = saved.config.model, saved.tokenizer
    arch = architecture_for(config)
    ours = saved.model(torch.device("cpu")).state_dict()
    if folder.exists():
        raise UserError(f"{folder} exists; name a folder that does not")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"there is no folder {folder.absolute().parent}")
    end = tokenizer.vocabulary.get("<|endoftext|>") if isinstance(tokenizer, BPETokenizer) else None
    ends = {"bos_token_id": saved.start_token, "eos_token_id": end, "pad_token_id": None}
    plain = {
        "architectures": [arch.class_name],
        "model_type": arch.model_type,
        "vocab_size": tokenizer.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "torch_dtype": "float32",
        **arch.to_plain(config),
        **ends,
    }
    # Without this pipelines would run past the last position.
    generation = {"max_length": config.block_size, **ends}
    scratch = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.absolute().parent))
    try:
        files = {
            "model.safetensors": save(arch.export_weights(config, ours), {"format": "pt"}),
            "config.json": json.dumps(plain, indent=1).encode(),
            "generation_config.json": json.dumps(generation, indent=1).encode(),
            "tokenizer.json": json.dumps(tokenizer_json(tokenizer), indent=1).encode(),
            "tokenizer_config.json": tokenizer_config(config.block_size),
        }
        for name, content in files.items():
            (scratch / name).write_bytes(content)
        scratch.chmod(0o755)  # a folder like any other, where mkdtemp's is for its owner alone
        os.rename(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return arch


def load_original(folder: Path) -> Any:
    """The model of a folder as transformers computes it; None where that is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True
        ).eval()
    except Exception as error:  # it documents no kinds for what may stand in a stranger's config
        reason = " ".join(str(error).split())
        raise UserError(f"transformers cannot open {folder}: {reason[:200]}") from error


def read_folder(folder: Path, tokenizer_folder: Path | None = None) -> Imported:
    """A model of such a folder.

    Raises:
        UserError: for what nothing here computes, and for files that are missing or damaged.
    """
    where = folder / "config.json"
    plain = read_json(where)
    arch = {a.model_type: a for a in ARCHITECTURES}.get(str(plain.get("model_type")))
    if arch is None:
        known = ", ".join(a.model_type for a in ARCHITECTURES)
        kind = brief(plain.get("model_type"))
        raise UserError(f"{where}: model_type is {kind}; only {known} can be imported")
    fields = Fields(plain, str(where))
    V = fields.size("vocab_size")
    tokenizer = read_tokenizer(tokenizer_folder or folder, V)
    if tokenizer.vocab_size != V:
        raise UserError(f"{where}: vocab_size is {V}, the tokenizer has {tokenizer.vocab_size}")
    tensors = arch.clean(read_weights(folder))
    try:
        config = arch.read(fields, tensors)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    weights = arch.import_weights(config, V, tensors, str(folder))
    start = plain.get("bos_token_id")
    if type(start) is not int or not 0 <= start < V:
        start = 0
    return Imported(config, weights, tokenizer, start, "pydocs", load_original(folder))


def download(name: str) -> Path:
    """The folder of a model on the Hugging Face hub, fetched once.

    Raises:
        UserError: when it is out of reach.
    """
    from huggingface_hub import snapshot_download

    print(f"loading hub:{name}")
    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except Exception as error:  # the library documents no kinds
        reason = " ".join(str(error).split())
        raise UserError(
            f"could not load hub:{name} ({type(error).__name__}: {reason[:200]}); without a "
            f"network name a folder that has its files"
        ) from error
