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
from model.attention import (
    Attend,
    MultiHeadAttention,
    Rotary,
    attention,
    attention_weights,
    causal_mask,
)
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


@contextmanager
def heads_given(attn: MultiHeadAttention, z_BHTD: Tensor) -> Iterator[None]:
    """Let an attention layer take the outputs of its heads, before W_O, from `z_BHTD` instead of
    computing them, inside the `with` block. Its input is ignored."""
    own = vars(attn).get("forward")  # somebody may have replaced it
    vars(attn)["forward"] = lambda *args, **options: attn.out(attn.merge_heads(z_BHTD))
    try:
        yield
    finally:
        del vars(attn)["forward"]
        if own:
            vars(attn)["forward"] = own


def rotated(rotary: Rotary, x: Tensor, by: int) -> Tensor:
    """Rotate (..., D) by this number of positions; back, if it is negative."""
    cos_D, sin_D = rotary.cos_TD[abs(by)].to(x), rotary.sin_TD[abs(by)].to(x)
    other_half = x.roll(x.size(-1) // 2, dims=-1)
    return x * cos_D + other_half * (sin_D if by > 0 else -sin_D)


def key_at(k_BHSD: Tensor, heads: list[int], position: int) -> Tensor:
    """Return which keys are at a position in some heads, (H, S). A negative position counts back
    from the last key of the pass. A pass may not have that position yet, as in decoding."""
    _, H, S, _ = k_BHSD.shape
    at_HS = k_BHSD.new_zeros(H, S, dtype=torch.bool)
    at_HS[heads] = torch.arange(S, device=at_HS.device) == position + S * (position < 0)
    return at_HS


@contextmanager
def key_moved(
    model: GPT, layer: int, heads: Iterable[int], position: int, by: int
) -> Iterator[None]:
    """Rotate the key at a position (see `key_at`) in some heads of a layer, as if its token stood
    `by` positions later, inside the `with` block. Queries attend to it as at that distance; its
    value, and what other layers and heads see, stay the same.

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
        at_HS1 = key_at(k_BHSD, heads, position)[..., None]
        return q_BHTD, torch.where(at_HS1, rotated(rotary, k_BHSD, by), k_BHSD), *others

    with hooked_before(attends_of(model)[layer], move):
        yield


@contextmanager
def key_hidden(model: GPT, layer: int, heads: Iterable[int], position: int) -> Iterator[None]:
    """Hide the key at a position (see `key_at`) from later positions, in some heads of a layer,
    inside the `with` block: attention knockout."""
    heads = [*heads]

    def hide(module: nn.Module, args: Any) -> Any:
        q_BHTD, k_BHSD, v_BHSD, mask, _ = args
        T, S = q_BHTD.size(2), k_BHSD.size(2)
        earlier_TS = causal_mask(T, S, device=k_BHSD.device).tril(S - T - 1)
        shown_HTS = ~(key_at(k_BHSD, heads, position)[:, None] & earlier_TS)
        return q_BHTD, k_BHSD, v_BHSD, shown_HTS if mask is None else shown_HTS & mask, False

    with hooked_before(attends_of(model)[layer], hide):
        yield


@contextmanager
def without_mask(model: nn.Module, later: bool = True, window: bool = True) -> Iterator[None]:
    """Let every position attend to later positions, and to those that its window hides, inside the
    `with` block; gradients flow. While decoding with a cache, there are no later positions.

    `capture` still returns the mask of the model there, and the weights with this mask.
    """

    def unmask(module: nn.Module, args: Any, z_BHTD: Tensor) -> Tensor:
        q_BHTD, k_BHSD, v_BHSD, mask, _ = args
        past_TS = causal_mask(q_BHTD.size(2), k_BHSD.size(2), device=k_BHSD.device)
        if mask is not None:
            mask = mask | (past_TS & window) | (~past_TS & later)
        return attention(q_BHTD, k_BHSD, v_BHSD, mask)

    with hooked(attends_of(model), unmask):
        yield
