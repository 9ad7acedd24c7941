"""The command compare: variants of attention, on a run's weights and text.

Every comparison is a function whose docstring has its title and its explanation. To add one, write
it and add it to `COMPARISONS`. The model itself has no flags for these variants.
"""

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from common.errors import UserError
from configs.config import STRICT, Count, ModelConfig, Natural, TrainConfig
from lens.capture import LayerPass, capture, without_mask
from lens.formula import FINITE, change, layer_by_torch, layer_per_head, layer_steps
from lens.measure import mean_loss
from lens.metrics import entropy, uniform_attention
from lens.subject import Checkpoint, Prompt, Sequences, Source, Subject, open_text, spread_places
from lens.tables import Table, visible
from model.attention import MultiHeadAttention, attention_weights, causal_mask
from model.error import largest_error
from model.generate import Sampling, generate
from model.gpt import GPT
from training.optim import make_optimizer
from training.step import train_step

Found = dict[str, float | str]  # numbers, or a generated text, by name


@dataclass(frozen=True, config=STRICT)
class Compare:
    """Compare variants of attention on a run's weights"""

    only: str | None = None
    """Name of a single comparison to run, such as scale; if omitted, all run."""

    layer: Natural = 0
    """Index of the layer whose weights are used, from 0."""

    steps: Count = 400
    """Number of training steps of the two small models, one with a mask and one without."""

    prompt: Prompt = None
    source: Source = None
    checkpoint: Checkpoint = "best"
    sequences: Sequences = None


class Inputs(NamedTuple):
    """What is compared."""

    subject: Subject
    sequences_BT: Tensor
    steps: int

    layer: LayerPass
    """The pass of a layer over the prompt."""

    other_BSC: Tensor
    """The layer's input for another text, of another length."""


def compare(word: str | None, options: Compare) -> Iterator[str | Table]:
    """Run the comparisons, and yield the title, the results and the explanation of each."""
    if options.only not in (None, *COMPARISONS):
        raise UserError(f"--only {options.only} must be one of {', '.join(COMPARISONS)}")
    subject = Subject(word, options)
    layer = subject.layer(options.layer)
    sequences_BT = subject.sequences(options.sequences)
    other = capture(subject.model, sequences_BT[-1:, : subject.window // 2])
    other_BSC = other.layers[options.layer].x_BTC
    given = Inputs(subject, sequences_BT, options.steps, layer, other_BSC)
    yield f"layer {options.layer} on the prompt; losses on {subject.describe(sequences_BT)}"
    for name, comparison in COMPARISONS.items():
        if options.only in (None, name):
            title, why = (inspect.getdoc(comparison) or "").split("\n\n")
            yield title
            yield Table([[name, ""], *comparison(given).items()], words=2, form=".4g")
            yield why


# --- one layer -----------------------------------------------------------------------------------


def classical(attn: MultiHeadAttention) -> MultiHeadAttention:
    """Copy the four matrices of a layer, without rotary positions, QK-norm and window."""
    bias = attn.out.bias is not None
    kv_heads = attn.key.out_features // attn.head_width
    twin = MultiHeadAttention(attn.out.out_features, attn.n_head, kv_heads, bias=bias)
    twin.to(attn.out.weight)
    twin.load_state_dict(attn.state_dict(), strict=False)
    return twin.eval()


def defined(entropies: Tensor) -> float | str:
    """Return the mean entropy; there is none if the context has a single token."""
    return "undefined" if entropies.isnan().all() else entropies.mean().item()


def uniform_of(layer: LayerPass) -> Tensor:
    """Return (T, T) weights, equal for all positions that the layer may attend to."""
    return uniform_attention(layer.x_BTC.size(1), layer.attn.attend.window)


def one_head(given: Inputs) -> Found:
    """one head as wide as the layer and several, on the same queries and keys

    One softmax over the sum of all heads' scores gives one attention pattern; several heads give
    several patterns at the same cost.
    """
    seen, merge, many_HTS = given.layer, given.layer.attn.merge_heads, given.layer.weights_BHTS[0]
    q, k, v = (merge(x)[:, None] for x in (seen.q_BHTD, seen.k_BHSD, seen.v_BHSD))
    one_B1TS = attention_weights(q, k, seen.mask)
    apart_HH = (many_HTS[:, None] - many_HTS).abs().sum(-1).mean(-1) / 2
    pairs = max(1, len(many_HTS) * (len(many_HTS) - 1))
    return {
        "entropy of uniform attention": defined(entropy(uniform_of(seen))),
        "entropy of the one head": defined(entropy(one_B1TS)),
        "entropy of the several heads, lowest": defined(entropy(many_HTS).min()),
        "entropy of the several heads, highest": defined(entropy(many_HTS).max()),
        "change of the heads' outputs": change((one_B1TS @ v)[:, 0], merge(seen.z_BHTD)),
        "attention that two heads place differently, mean": apart_HH.sum().item() / pairs,
    }


def output(given: Inputs) -> Found:
    """with and without the output projection W_O

    Without W_O, each head can write only to its own D channels of the residual stream; with W_O, it
    can write to all.
    """
    H, merged_BTC = given.layer.attn.n_head, given.layer.attn.merge_heads(given.layer.z_BHTD)
    blocks = given.layer.attn.out.weight.unflatten(0, (H, -1)).unflatten(2, (H, -1))
    square_HH = blocks.square().sum((1, 3))
    own = (square_HH.trace() / square_HH.sum().clamp(min=1e-30)).item()
    return {
        "change of the layer's output without it": change(merged_BTC, given.layer.output_BTC),
        "fraction of W_O between channels of two heads": 1 - own,
    }


def split(given: Inputs) -> Found:
    """one projection split into heads, and W_q, W_k, W_v for each head

    Both are the same map: the heads' matrices, stacked, are the shared matrix, and rows h*D to
    (h+1)*D belong to head h. In another order, the rows belong to other heads. `verify` compares
    the gradients, too.
    """
    attn, interleaved = given.layer.attn, copy.deepcopy(given.layer.attn)
    x_BTC, output_BTC = given.layer.x_BTC, given.layer.output_BTC
    for layer in (interleaved.query, interleaved.key, interleaved.value):
        # Head h takes rows h, h + H, h + 2H ...
        order = torch.arange(layer.out_features).view(attn.head_width, -1).T.reshape(-1)
        for parameter in layer.parameters():
            parameter.data = parameter[order]
    return {
        "head h owning rows h*D to (h+1)*D": largest_error(layer_per_head(attn, x_BTC), output_BTC),
        "every H-th row instead": largest_error(layer_per_head(interleaved, x_BTC), output_BTC),
    }


def cross(given: Inputs) -> Found:
    """plain, causal and cross-attention with the same matrices (no rotary, QK-norm, window)

    The last position may attend to every key in both cases. Cross-attention has as many outputs as
    queries, for a source of any length.
    """
    attn, x_BTC, other_BSC = classical(given.layer.attn), given.layer.x_BTC, given.other_BSC
    plain, causal, crossed = attn(x_BTC), attn(x_BTC, causal=True), attn(x_BTC, other_BSC)
    return {
        "causal against plain, first position": change(causal[:, 0], plain[:, 0]),
        "causal against plain, last position": change(causal[:, -1], plain[:, -1]),
        "cross with the text itself against plain": largest_error(attn(x_BTC, x_BTC), plain),
        f"cross with {other_BSC.size(1)} other positions against plain": change(crossed, plain),
    }


def scale(given: Inputs) -> Found:
    """with and without the scale 1/sqrt(D)

    Scores that are sqrt(D) times as large concentrate each row on one key, and a saturated softmax
    passes little gradient back to its scores.
    """
    found: Found = {"entropy of uniform attention": defined(entropy(uniform_of(given.layer)))}
    for name, scaled in {"with 1/sqrt(D)": True, "without": False}.items():
        steps = layer_steps(given.layer.attn, given.layer.x_BTC, scaled=scaled)
        A, z = steps["weights A"].value, steps["heads z"].value
        loss = (z * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))).sum()
        (gradient,) = torch.autograd.grad(loss, steps["scores"].value)
        found |= {
            f"{name}: entropy": defined(entropy(A)),
            f"{name}: largest weight of a row, mean": A.amax(-1).mean().item(),
            f"{name}: gradient of a random loss": gradient.norm().item(),
        }
    return found


def leak_gap(dtype: torch.dtype) -> int:
    """Find the smallest integer by which a hidden score must exceed the visible one to receive
    attention, in this type, if the mask adds `FINITE`."""
    gap = torch.arange(-2 * FINITE).to(dtype)
    masked = torch.stack((torch.zeros_like(gap), gap + FINITE), dim=-1)
    return int((masked.softmax(-1)[:, 1] > 0).int().argmax())


def finite_mask(given: Inputs) -> Found:
    """a mask that adds -10000, and one that sets -inf

    -inf hides any score. -10000 fails if a hidden score exceeds the visible ones by about 10000:
    then exp no longer underflows. Near 10000, float32, bfloat16 and float16 round to 0.001, 64 and
    8.
    """
    found = Found()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        found[f"{name}: score gap at which -10000 leaks"] = leak_gap(dtype)
    for masked_by in (FINITE, -math.inf):
        weights = layer_steps(given.layer.attn, given.layer.x_BTC, masked_by=masked_by)["weights A"]
        leaked = weights.value[weights.hidden].sum()
        found[f"attention that leaks on this prompt, {masked_by:g}"] = leaked.item()
    return found


def relu(given: Inputs) -> Found:
    """with and without a ReLU after the output projection

    A layer that adds to a residual stream must be able to subtract; after a ReLU it can only add.
    """
    output_BTC = given.layer.output_BTC
    return {
        "fraction of the outputs that become zero": (output_BTC < 0).float().mean().item(),
        "fraction of the output's norm that is lost": change(F.relu(output_BTC), output_BTC),
    }


def polarity(given: Inputs) -> Found:
    """the two polarities of a mask: True is visible here, and hidden in nn.MultiheadAttention

    With the wrong polarity, a causal mask shows only later tokens, and the last position has
    nothing to attend to. As above, without rotary positions, QK-norm and window.
    """
    attn, x_BTC = classical(given.layer.attn), given.layer.x_BTC
    mask = causal_mask(x_BTC.size(1), x_BTC.size(1))
    right = attn(x_BTC, mask=mask)
    # `layer_by_torch` inverts its mask once more.
    return {
        "the same mask given to both": change(layer_by_torch(attn, x_BTC, ~mask), right),
        "the mask inverted for the other": largest_error(layer_by_torch(attn, x_BTC, mask), right),
    }


# --- whole models --------------------------------------------------------------------------------


def unmasked(given: Inputs) -> Found:
    """the mask removed after training

    The heads never attended to the hidden tokens in training, so these only add noise.
    """
    model, sequences_BT = given.subject.model, given.sequences_BT
    found: Found = {"validation loss, with the mask": mean_loss(model, sequences_BT)}
    hidden = {"later tokens": (True, False)}
    if any(model.config.windows):
        hidden |= {"tokens before the window": (False, True), "both": (True, True)}
    for name, (later, window) in hidden.items():
        with without_mask(model, later, window):
            found[f"{name} visible"] = mean_loss(model, sequences_BT)
    return found


def never_masked(given: Inputs) -> Found:
    """no mask from the start: two small models, 2 layers x 64

    Without a mask, the model attends to the next token and learns to copy it. During generation
    there is no next token, and the model has learned little else.
    """
    subject, block_size = given.subject, given.subject.config.model.block_size
    if not subject.trained_periods:  # repeated strings need room for two copies
        block_size = min(block_size, 64)
    batches = open_text(subject.saved, subject.options.source, block_size)
    train = TrainConfig(max_steps=given.steps, batch_size=16)
    shape = ModelConfig(block_size=block_size, n_layer=2, n_head=2, n_embd=64)
    sequences_BT = batches.validation_sequences(spread_places(batches, 32))
    found = Found()
    for how, masked in {"with": True, "without": False}.items():
        torch.manual_seed(train.seed)
        model = GPT(shape, subject.V)
        optimizer = make_optimizer(model, train)
        with contextlib.nullcontext() if masked else without_mask(model):
            for step in range(given.steps):
                batch = batches.train_batch(step, train.batch_size)
                train_step(model, optimizer, batch, train, step)
        found[f"trained {how}: loss with the mask"] = mean_loss(model, sequences_BT)
        with without_mask(model):
            found[f"trained {how}: loss without it"] = mean_loss(model, sequences_BT)
        generator = torch.Generator().manual_seed(train.seed)
        tokens = generate(model, sequences_BT[:1, :8], 50, Sampling(), generator)
        labels, gap = subject.tokenizer.labels, subject.tokenizer.gap
        text = gap.join(visible(labels[int(token)]) for token in tokens)
        found[f"trained {how}, it generates:"] = text
    return found


COMPARISONS: dict[str, Callable[[Inputs], Found]] = {
    comparison.__name__: comparison
    for comparison in (
        *(one_head, output, split, cross, scale, finite_mask, relu, polarity),
        *(unmasked, never_masked),
    )
}
