"""How large a model is, and what training or decoding it takes, by formula.

Letters as in model/attention.py, and L layers, P parameters, b windows read at once.
"""

import math
import os

import torch

from common.errors import UserError
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


def state_bytes(config: ModelConfig, train: TrainConfig, vocab_size: int) -> int:
    """Weights, gradients, and what the optimizer remembers: one number of a weight for Muon, whose
    matrices are nearly all, two for AdamW."""
    numbers = 4 if train.optimizer == "adamw" else 3
    return FLOAT * numbers * count_parameters(config, vocab_size)


def activation_bytes(config: ModelConfig, train: TrainConfig, vocab_size: int) -> int:
    """What the forward pass of a piece of the batch keeps for the backward pass, about.

    20 C numbers for each token and layer (17 to 23, counted, by the choices inside a block), the
    logits and their softmax, and for explicit attention two matrices of T x T for each head.
    """
    tokens = train.piece_size * config.block_size
    weights = 2 * config.n_head * config.block_size if config.attention == "explicit" else 0
    return FLOAT * tokens * (config.n_layer * (20 * config.n_embd + weights) + 2 * vocab_size)


def training_bytes(config: ModelConfig, train: TrainConfig, vocab_size: int) -> int:
    """What training holds in memory at the end of a forward pass, about."""
    return state_bytes(config, train, vocab_size) + activation_bytes(config, train, vocab_size)


def flops_per_token(config: ModelConfig, vocab_size: int) -> int:
    """Floating-point operations of forward and backward pass (Chowdhery et al. 2022, appendix B).

    Six for each weight of a matrix that a token meets, the embeddings not being among them, and
    for the two products of attention 12 L C T; what the causal mask hides of them is counted.
    """
    C, L = config.n_embd, config.n_layer
    hidden = math.ceil(8 * C / 3) if config.activation == "swiglu" else 4 * C
    products = 3 if config.activation == "swiglu" else 2
    matrices = L * (4 * C * C + products * C * hidden) + C * vocab_size
    return 6 * matrices + 12 * L * C * config.block_size


def describe_size(config: ModelConfig, train: TrainConfig, vocab_size: int) -> str:
    """What `train.py --dry_run` prints."""
    P, tokens = count_parameters(config, vocab_size), train.batch_size * config.block_size
    state, activations = (
        size(config, train, vocab_size) / 1e6 for size in (state_bytes, activation_bytes)
    )
    step = tokens * flops_per_token(config, vocab_size)
    return (
        f"parameters  {P:,}\n"
        f"memory      about {state + activations:,.0f} MB: weights, gradients and optimizer "
        f"{state:,.0f}, activations {activations:,.0f}; PyTorch itself takes some 250 more\n"
        f"operations  {step / 1e9:,.1f} GFLOP a step of {tokens:,} tokens, "
        f"{train.max_steps * step / 1e12:,.1f} TFLOP in {train.max_steps:,} steps"
    )


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
    # The formula may be off by a fourth, and what would fit should not be refused.
    refuse_too_large(training_bytes(config, train, vocab_size) * 3 // 4, device, sizes)


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
