"""How large a model is, and what training or decoding takes.

Letters as in model/attention.py, and L layers.
"""

import dataclasses
import os
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT
from training.config import TrainConfig

FLOAT = 4  # bytes


class NoNumbers(TorchFunctionMode):
    """Inside, weights have shapes and no numbers, and take no memory.

    (`torch.device("meta")` also computes constants there, and that imports PyTorch's compiler,
    which takes seconds.)
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"]
        if function is torch.empty:
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


def skeleton(config: ModelConfig, vocab_size: int) -> GPT:
    """The model without its numbers, which takes no memory."""
    if config.positions == "rotary":  # whose constants are as many as there are positions
        config = dataclasses.replace(config, block_size=1)
    with NoNumbers():
        return GPT(config, vocab_size)


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """How many numbers are learned."""
    return skeleton(config, vocab_size).num_parameters()


def state_bytes(config: ModelConfig, train: TrainConfig, vocab_size: int) -> int:
    """Weights, gradients, and the optimizer's state: one number of a weight for Muon, whose
    matrices are nearly all, two for AdamW."""
    numbers = 4 if train.optimizer == "adamw" else 3
    return FLOAT * numbers * count_parameters(config, vocab_size)


def activation_bytes(config: ModelConfig, train: TrainConfig, vocab_size: int) -> int:
    """What the forward pass of a micro-batch keeps for the backward pass, about.

    20 C numbers for each token and layer (17 to 23, counted, by the choices inside a block), the
    logits and their softmax, and for explicit attention two matrices of T x T for each head.
    """
    tokens = train.micro_batch_size * config.block_size
    weights = 2 * config.n_head * config.block_size if config.attention == "explicit" else 0
    return FLOAT * tokens * (config.n_layer * (20 * config.n_embd + weights) + 2 * vocab_size)


def training_bytes(config: ModelConfig, train: TrainConfig, vocab_size: int) -> int:
    """What training holds in memory at the end of a forward pass, about."""
    return state_bytes(config, train, vocab_size) + activation_bytes(config, train, vocab_size)


def flops_per_token(config: ModelConfig, vocab_size: int) -> int:
    """FLOPs of forward and backward pass for a token (Chowdhery et al. 2022, appendix B).

    Six for each weight of the matrices that a token is multiplied by (not the embeddings), and
    12 L C T for the two products of attention, including what the causal mask hides.
    """
    blocks = skeleton(config, vocab_size).blocks.parameters()
    matrices = sum(p.numel() for p in blocks if p.dim() == 2) + config.n_embd * vocab_size
    return 6 * matrices + 12 * config.n_layer * config.n_embd * config.block_size


def describe_size(config: ModelConfig, train: TrainConfig, vocab_size: int) -> str:
    """What `train.py --dry_run` prints."""
    tokens = train.batch_size * config.block_size
    state = state_bytes(config, train, vocab_size) / 1e6
    activations = activation_bytes(config, train, vocab_size) / 1e6
    step = tokens * flops_per_token(config, vocab_size)
    whole = f"{train.max_steps * step / 1e12:,.1f} TFLOP in {train.max_steps:,} steps"
    if train.minutes:
        whole = f"as many steps as fit into --train.minutes {train.minutes:g}"
    return (
        f"parameters  {count_parameters(config, vocab_size):,}\n"
        f"memory      about {state + activations:,.0f} MB: weights, gradients and optimizer "
        f"{state:,.0f}, activations {activations:,.0f}; PyTorch itself takes about 250 more\n"
        f"compute     {step / 1e9:,.1f} GFLOP per step of {tokens:,} tokens, {whole}"
    )


def decoding_bytes(config: ModelConfig, batch_size: int, vocab_size: int) -> int:
    """What decoding needs at the least: weights, and keys and values of a full window."""
    cache = 2 * config.n_layer * config.block_size * config.n_embd * batch_size
    return FLOAT * (count_parameters(config, vocab_size) + cache)


def memory_here(device: torch.device) -> int | None:
    """Bytes of memory of the device, where the system tells."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return None


def check_memory(what: str, needed: int, device: torch.device) -> None:
    """Say so before memory runs out, rather than be killed without a word.

    Args:
        what: takes the memory, in words or flags.
        needed: bytes.

    Raises:
        UserError: when the device has less memory than that.
    """
    here = memory_here(device)
    if here is not None and needed > here:
        raise UserError(
            f"{what} would need {needed / 1e9:,.0f} GB of memory at least, and there are "
            f"{here / 1e9:,.0f} GB here"
        )


def check_training_memory(
    config: ModelConfig, train: TrainConfig, vocab_size: int, device: torch.device
) -> None:
    """See `check_memory`."""
    what = (
        f"--model.n_layer {config.n_layer}, --model.n_embd {config.n_embd}, --model.block_size "
        f"{config.block_size} and --train.batch_size {train.batch_size} with "
        f"--train.gradient_accumulation_steps {train.gradient_accumulation_steps}"
    )
    # The formula may be off by a fourth, and what would fit should not be refused.
    check_memory(what, training_bytes(config, train, vocab_size) * 3 // 4, device)
