"""Capture the activations of a forward pass, and run passes with one change.

There is no second model here: hooks read or replace what the model computes, with any kernel.
Letters as in `model/attention.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError
from model.attention import Attend, MultiHeadAttention, Rotary, attention, attention_weights
from model.gpt import GPT, Block

Hook = Callable[[nn.Module, Any, Tensor], Tensor | None]


@dataclass
class LayerPass:
    """The activations of one attention layer in one forward pass."""

    attn: MultiHeadAttention

    x_BTC: Tensor
    """The input: the normalized residual stream."""

    q_BHTD: Tensor
    """Queries after QK-norm and rotation, if the model has them."""

    k_BHSD: Tensor
    v_BHSD: Tensor

    mask: Tensor | None
    """True may attend; None hides nothing."""

    z_BHTD: Tensor
    """Each head's output, from the model's kernel."""

    output_BTC: Tensor
    """What the layer added to the residual stream: the merged heads times W_O."""

    @property
    def weights_BHTS(self) -> Tensor:
        """The attention weights, by the textbook formula from the queries and keys."""
        return attention_weights(self.q_BHTD, self.k_BHSD, self.mask)


@dataclass
class Pass:
    """One forward pass of a model.

    It holds 7 x L x B x T x C numbers and the logits. Attention weights, B x H x T x S numbers per
    layer, are computed on demand, so that only one layer's weights are in memory at a time.
    """

    layers: list[LayerPass]

    residual: list[Tensor]
    """The residual stream (B, T, C) before each block, and after the last one."""

    logits_BTV: Tensor


def blocks_of(model: nn.Module) -> list[Block]:
    """Return the blocks, in order."""
    return [module for module in model.modules() if isinstance(module, Block)]


def attends_of(model: nn.Module) -> list[Attend]:
    """Return the kernel of each attention layer, in order."""
    return [block.attn.attend for block in blocks_of(model)]


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Hook) -> Iterator[None]:
    """Call `hook(module, arguments, output)` after each of the modules inside the `with` block. If
    it returns a tensor, this replaces the output."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def hooked_before(module: nn.Module, hook: Callable[[nn.Module, Any], Any]) -> Iterator[None]:
    """Call `hook(module, arguments)`, which returns other arguments, before the module inside the
    `with` block."""
    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def capture(model: GPT, tokens_BT: Tensor) -> Pass:
    """Run the model on tokens, without gradients, and return its activations.

    Raises:
        FloatingPointError: if the residual stream or the logits are not finite.
    """
    attended: list[Any] = []  # arguments and output of each layer's kernel
    layers, residual, blocks = [], [], blocks_of(model)

    def keep_layer(attn: Any, args: Any, output_BTC: Tensor) -> None:
        (q_BHTD, k_BHSD, v_BHSD, mask, *_), z_BHTD = attended.pop()
        layers.append(LayerPass(attn, args[0], q_BHTD, k_BHSD, v_BHSD, mask, z_BHTD, output_BTC))

    with (
        hooked(attends_of(model), lambda attend, args, z_BHTD: attended.append((args, z_BHTD))),
        hooked([block.attn for block in blocks], keep_layer),
        hooked([*blocks, model.final_norm], lambda block, args, _: residual.append(args[0])),
    ):
        logits_BTV = model(tokens_BT)
    if not all(numbers.isfinite().all() for numbers in (*residual, logits_BTV)):
        raise FloatingPointError("the model's activations are not finite")
    return Pass(layers, residual, logits_BTV)


@contextmanager
def head_replaced(model: GPT, layer: int, head: int, value: Tensor | float) -> Iterator[None]:
    """Set a head's output z, before W_O, to `value` at every position inside the `with` block.

    (After W_O, the heads are already summed, so a single head could not be ablated.)

    Args:
        value: a number, or a vector of shape (D,).
    """

    def replace(module: nn.Module, args: Any, z_BHTD: Tensor) -> Tensor:
        z_BHTD = z_BHTD.clone()
        z_BHTD[:, head] = value
        return z_BHTD

    with hooked([attends_of(model)[layer]], replace):
        yield


def turned(rotary: Rotary, x: Tensor, by: int) -> Tensor:
    """Rotate (..., D) by this number of positions; back, if it is negative."""
    cos_D, sin_D = rotary.cos_TD[abs(by)], rotary.sin_TD[abs(by)]
    other_half = x.roll(x.size(-1) // 2, dims=-1)
    return x * cos_D + other_half * (sin_D if by > 0 else -sin_D)


@contextmanager
def key_moved(
    model: GPT, layer: int, heads: Iterable[int], position: int, by: int
) -> Iterator[None]:
    """Rotate the key at a position in some heads of a layer, as if its token stood `by` positions
    later, inside the `with` block. Queries attend to it as at that distance; its value, and what
    other layers and heads see, stay the same.

    Raises:
        UserError: for a model without rotary positions, or a rotation by more than its context.
    """
    rotary, heads = model.rotary, [*heads]
    if rotary is None:
        raise UserError(
            f"keys cannot be moved with model.positions {model.config.positions}: only rotary "
            f"positions are in the keys"
        )
    if abs(by) >= model.config.block_size:
        raise UserError(f"a key moves by fewer than {model.config.block_size} positions, not {by}")

    def move(module: nn.Module, args: Any) -> Any:
        q_BHTD, k_BHSD, *others = args
        k_BHSD = k_BHSD.clone()
        k_BHSD[:, heads, position] = turned(rotary, k_BHSD[:, heads, position], by)
        return q_BHTD, k_BHSD, *others

    with hooked_before(attends_of(model)[layer], move):
        yield


@contextmanager
def key_hidden(model: GPT, layer: int, heads: Iterable[int], position: int) -> Iterator[None]:
    """Hide the key at a position from later positions, in some heads of a layer, inside the `with`
    block: attention knockout."""
    heads = [*heads]

    def hide(module: nn.Module, args: Any) -> Any:
        q_BHTD, k_BHSD, v_BHSD, mask, _ = args
        H, T, S = q_BHTD.size(1), q_BHTD.size(2), k_BHSD.size(2)
        mask_HTS = torch.ones(T, S, dtype=torch.bool) if mask is None else mask
        mask_HTS = mask_HTS.expand(H, T, S).clone()
        mask_HTS[heads, position + 1 :, position] = False
        return q_BHTD, k_BHSD, v_BHSD, mask_HTS, False

    with hooked_before(attends_of(model)[layer], hide):
        yield


@contextmanager
def without_mask(model: nn.Module) -> Iterator[None]:
    """Let every position attend to all positions inside the `with` block; gradients flow.

    `capture` still returns the mask of the model there, and the weights with this mask.
    """
    with hooked(attends_of(model), lambda module, args, z_BHTD: attention(*args[:3])):
        yield
