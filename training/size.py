"""How large a model is, and what training or decoding it needs at the least, by formula.

Letters as in model/attention.py, and L layers, P parameters, b windows read at once.
"""

import math
import os

import torch

from errors import UserError
from model.config import ModelConfig
from model.gpt import NGRAM_ROWS
from training.config import TrainConfig

FLOAT = 4  # bytes


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """P, what `GPT(config, vocab_size).num_parameters()` would be, without building it."""
    C, V, bias = config.n_embd, vocab_size, int(config.bias)
    norm = C * (1 + bias * (config.norm == "layernorm"))
    attention = 4 * C * C + bias * 4 * C + config.qk_norm * 2 * config.head_width
    hidden = math.ceil(8 * C / 3) if config.activation == "swiglu" else 4 * C
    products = 3 if config.activation == "swiglu" else 2
    mlp = products * C * hidden + bias * ((products - 1) * hidden + C)
    places = config.block_size if config.positions == "learned" else 0
    rows, combinations = 0, V
    for _ in range(2, config.ngrams + 1):
        combinations = min(combinations * V, NGRAM_ROWS)
        rows += combinations
    tables = V + places + rows + (0 if config.tie_head else V)
    return config.n_layer * (attention + mlp + 2 * norm) + norm + tables * C


def training_bytes(config: ModelConfig, train: TrainConfig, vocab_size: int) -> int:
    """What training needs at the least, in bytes: never more than it turns out to take.

    12 P for weights, gradients and one number an optimizer remembers of each, and what the backward
    pass reads of b windows: 8 C a token and layer, logits and their gradient.
    """
    tokens = train.batch_size // train.grad_accum_steps * config.block_size
    P = count_parameters(config, vocab_size)
    kept = 8 * config.n_layer * config.n_embd + 2 * vocab_size
    return FLOAT * (3 * P + tokens * kept)


def decoding_bytes(config: ModelConfig, streams: int, vocab_size: int) -> int:
    """What decoding needs at the least, in bytes: weights, and keys and values of a full window."""
    cache = 2 * config.n_layer * config.block_size * config.n_embd * streams
    return FLOAT * (count_parameters(config, vocab_size) + cache)


def memory_here(device: torch.device) -> int | None:
    """Bytes of memory of the device, where the system tells."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return None


def refuse_to_train_too_large(
    config: ModelConfig, train: TrainConfig, vocab_size: int, device: torch.device
) -> None:
    """See `refuse_too_large`."""
    sizes = {
        "model.n_layer": config.n_layer,
        "model.n_embd": config.n_embd,
        "model.ngrams": config.ngrams,
        "model.block_size": config.block_size,
        "train.batch_size": train.batch_size,
    }
    refuse_too_large(training_bytes(config, train, vocab_size), device, sizes)


def refuse_too_large(needed: int, device: torch.device, settings: dict[str, int]) -> None:
    """Say so before memory runs out, rather than be killed without a word.

    Args:
        needed: bytes.
        settings: what made it so many, by the names of their flags.

    Raises:
        UserError: when the device has less memory than that.
    """
    here = memory_here(device)
    if here is not None and needed > here:
        made = ", ".join(f"--{flag} {value}" for flag, value in settings.items())
        raise UserError(
            f"out of memory before it begins: {made} need at least "
            f"{min(needed // 10**9, 10**9):,} GB, and there are {here // 10**9:,} GB here; make "
            f"the largest of them smaller"
        )
