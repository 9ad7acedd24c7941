"""A forward pass as it really happened: what each layer read, compared and wrote; and passes in
which one thing is changed.

Nothing here is a second model: hooks look at, or replace, what the model itself computes, with
whichever kernel it runs. Letters as in `model/attention.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import Attend, attention, join_masks
from model.gpt import GPT, Block


@dataclass
class LayerPass:
    """What one attention layer did in one forward pass."""

    x_BTC: Tensor
    """What it read: the normalised stream."""

    q_BHTD: Tensor
    """Queries as they were compared: after QK-norm and rotation, where there are such."""

    k_BHSD: Tensor
    v_BHSD: Tensor

    mask: Tensor | None
    """True may attend; None hides nothing."""

    z_BHTD: Tensor
    """Each head's output, by the model's own kernel."""

    output_BTC: Tensor
    """What it added to the stream: the heads merged, times W_O."""

    @property
    def weights_BHTS(self) -> Tensor:
        """The attention weights: the textbook formula on the q and k that were used."""
        return attention(self.q_BHTD, self.k_BHSD, self.v_BHSD, self.mask)[1]


@dataclass
class Pass:
    """One forward pass of a model.

    It holds 7 x L x B x T x C numbers and the logits. Attention weights, B x H x T x S numbers a
    layer, are made when asked for, so they are in memory for one layer at a time.
    """

    layers: list[LayerPass] = field(default_factory=list)
    stream: list[Tensor] = field(default_factory=list)
    """The residual stream (B, T, C) before each block, and after the last."""

    logits_BTV: Tensor = field(default_factory=lambda: torch.empty(0))


def blocks_of(model: nn.Module) -> list[Block]:
    """The blocks, in order."""
    return [module for module in model.modules() if isinstance(module, Block)]


def capture(model: GPT, tokens_BT: Tensor) -> Pass:
    """Run the model on tokens, without gradients, and keep what its layers did."""
    seen = Pass()
    inside: list[dict[str, Any]] = []  # of each layer, until it is complete

    def keep_stream(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.stream.append(args[0])

    def keep_attend(module: nn.Module, args: tuple[Any, ...], z_BHTD: Tensor) -> None:
        q_BHTD, k_BHSD, v_BHSD, mask, causal = args
        full_mask = join_masks(q_BHTD, k_BHSD, mask, causal)
        parts = {"q_BHTD": q_BHTD, "k_BHSD": k_BHSD, "v_BHSD": v_BHSD, "mask": full_mask}
        inside.append(parts | {"z_BHTD": z_BHTD})

    def keep_layer(module: nn.Module, args: tuple[Any, ...], output_BTC: Tensor) -> None:
        seen.layers.append(LayerPass(x_BTC=args[0], output_BTC=output_BTC, **inside.pop()))

    with ExitStack() as hooks, torch.no_grad():
        for block in blocks_of(model):
            hooks.callback(block.register_forward_pre_hook(keep_stream).remove)
            hooks.callback(block.attn.attend.register_forward_hook(keep_attend).remove)
            hooks.callback(block.attn.register_forward_hook(keep_layer).remove)
        hooks.callback(model.final_norm.register_forward_pre_hook(keep_stream).remove)
        seen.logits_BTV = model(tokens_BT)
    return seen


@contextmanager
def each_layer(model: nn.Module, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Inside the `with` block, call `see(layer, weights_BHTS)` as each attention layer computes.

    The weights of one layer are in memory at a time, unless `see` keeps them.
    """

    def hook_of(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            q_BHTD, k_BHSD, v_BHSD, mask, causal = args
            with torch.no_grad():
                full_mask = join_masks(q_BHTD, k_BHSD, mask, causal)
                see(layer, attention(q_BHTD, k_BHSD, v_BHSD, full_mask)[1])

        return hook

    with ExitStack() as hooks:
        for layer, module in enumerate(m for m in model.modules() if isinstance(m, Attend)):
            hooks.callback(module.register_forward_hook(hook_of(layer)).remove)
        yield


@contextmanager
def attention_weights(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the attention weights of every layer while the model computes what it always does.

    Inside the `with` block each forward pass appends, layer by layer, the weights after the
    softmax, (B, H, T, S).

        with attention_weights(model) as weights:
            logits = model(tokens)
        weights[layer][batch, head, query, key]
    """
    weights: list[Tensor] = []
    with each_layer(model, lambda layer, weights_BHTS: weights.append(weights_BHTS)):
        yield weights


@contextmanager
def head_replaced(model: GPT, layer: int, head: int, value: Tensor | float) -> Iterator[None]:
    """Inside the `with` block a head's output z, before W_O, is `value` at every position.

    (Cutting after W_O would not cut a head: there the heads are summed already.)

    Args:
        value: a number, or a vector of (D,).
    """

    def hook(module: nn.Module, args: tuple[Any, ...], z_BHTD: Tensor) -> Tensor:
        z_BHTD = z_BHTD.clone()
        z_BHTD[:, head] = value
        return z_BHTD

    handle = blocks_of(model)[layer].attn.attend.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def without_mask(model: nn.Module) -> Iterator[None]:
    """Inside the `with` block every position attends to all, the future too; gradients flow."""

    def hook(module: nn.Module, args: tuple[Any, ...], z_BHTD: Tensor) -> Tensor:
        return attention(*args[:3])[0]

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, Attend):
                hooks.callback(module.register_forward_hook(hook).remove)
        yield
