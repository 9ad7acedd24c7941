"""A folder as the library `transformers` reads and writes it: config.json, generation_config.json,
model.safetensors, tokenizer.json, tokenizer_config.json."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from common.atomic import atomic_folder
from common.errors import UserError, as_user_error
from data.tokenizer import Tokenizer
from formats.imported import Imported, compare_logits, load_original
from formats.names import GPT2, PERSIMMON
from formats.reference import check_reference
from formats.tokenizers import encoder_of, read_tokenizer
from model.gpt import GPT

# The files to download from the Hugging Face Hub: no pickles and no code.
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FILES = ["config.json", SINGLE, INDEX, "model-*-of-*.safetensors", "tokenizer.json"]


def write_folder(model: GPT, tokenizer: Tokenizer, start_token: int, folder: Path) -> str:
    """Export a model to a folder, which is complete or absent, and return a message.

    Raises:
        UserError: for a model that transformers cannot compute, or a folder that exists.
    """
    config, encoder = model.config, encoder_of(tokenizer)
    format = GPT2 if config.positions == "learned" else PERSIMMON
    plain = format.export_config(config)
    if folder.exists() or not folder.absolute().parent.is_dir():
        raise UserError(f"{folder} must be a new folder in an existing one")
    check_reference(model, "an export")
    end = encoder.token_to_id("<|endoftext|>")
    ends = {"bos_token_id": start_token, "eos_token_id": end, "pad_token_id": None}
    plain |= {"vocab_size": tokenizer.vocab_size, "architectures": [format.name], **ends}
    files = {
        "config.json": plain,
        # Without max_length, pipelines would run past the last position.
        "generation_config.json": {"max_length": config.block_size, **ends},
        "tokenizer.json": json.loads(encoder.to_str()),
        # With this class transformers opens any tokenizer.json.
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.block_size,
            "clean_up_tokenization_spaces": False,
        },
    }
    weights = save(format.export_tensors(model), {"format": "pt"})
    with atomic_folder(folder) as made:
        (made / "model.safetensors").write_bytes(weights)
        for name, content in files.items():
            (made / name).write_text(json.dumps(content, indent=1))
        said = compare_logits(model, load_original(format.name, made))
    return f"{format.name} in {folder}\n{said}"


def read_folder(folder: Path, tokens: Path | None = None) -> Imported:
    """Read a GPT-2 from a folder.

    Args:
        tokens: the folder of the tokenizer, if it is not `folder`.

    Raises:
        UserError: for another model, or files that are missing or damaged.
    """
    plain = read_config(folder)
    tensors = read_tensors(folder)
    model = GPT2.import_model(plain, tensors, folder)
    V = model.token_embedding.num_embeddings
    tokenizer = read_tokenizer(tokens or folder, V)
    start = plain.get("bos_token_id")
    if start not in range(V):
        start = tokenizer.start_token()
    return Imported(model, tokenizer, start, "pydocs", load_original(GPT2.name, folder))


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read model.safetensors, or the shards that an index names.

    Raises:
        UserError: for a file or a tensor that is missing or damaged.
    """
    index, tensors = folder / INDEX, dict[str, Tensor]()
    shard_of = dict[str, str]()
    if index.exists():
        with as_user_error(index):
            named = json.loads(index.read_bytes())["weight_map"]
            shard_of = {name: str(shard) for name, shard in named.items()}
    elif not (folder / SINGLE).exists():
        raise UserError(f"{folder} has no {SINGLE}; pickles are not supported")
    for name in sorted(set(shard_of.values())) or [SINGLE]:
        with as_user_error(folder / name):
            if Path(name).name != name:
                raise ValueError("a shard must be a file in the folder")
            tensors |= load_file(folder / name)
    if missing := shard_of.keys() - tensors.keys():
        raise UserError(f"{index} names {min(missing)}, which no shard has")
    return tensors


def read_config(folder: Path) -> Any:
    """Read the config.json of a folder, which need not have the weights yet.

    Raises:
        UserError: for a model other than GPT-2.
    """
    where = folder / "config.json"
    content = where.read_bytes()
    with as_user_error(where):
        plain = json.loads(content)
        GPT2.import_config(GPT2.defaults | plain, {}, folder)
    return plain


def download(name: str) -> Path:
    """Download a model from the Hugging Face Hub, once, and return its folder.

    Raises:
        UserError: if it cannot be downloaded, or for a model other than GPT-2, before its weights
            are downloaded.
    """
    from huggingface_hub import snapshot_download

    print(f"loading hub:{name}")
    with as_user_error(f"hub:{name}", "could not be loaded"):
        read_config(Path(snapshot_download(name, allow_patterns=["config.json"])))
        return Path(snapshot_download(name, allow_patterns=FILES))
