"""The verb compare: what each choice in attention does, on a run's weights and text."""

import contextlib
import sys
import textwrap
from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from common.errors import UserError, printable
from common.fields import STRICT, Natural
from common.tables import visible
from lens.capture import capture, without_mask
from lens.measure import mean_loss
from lens.pictures import new_picture, save_picture
from lens.subject import MeasureOptions, Subject, spread_sequences
from lens.variants import Comparison, layer_comparisons, with_relu
from model.config import ModelConfig
from model.generate import Sampling, generate
from model.gpt import GPT
from training.config import TrainConfig
from training.optim import get_lr_scale, make_optimizer
from training.step import train_step

Name = Literal[
    "torch", "heads", "output", "split", "cross", "scale", "finite_mask", "relu", "polarity",
    "trained_relu", "unmasked", "never_masked",
]  # fmt: skip


@dataclass(frozen=True, config=STRICT)
class Compare(MeasureOptions):
    """What each choice in attention does"""

    only: Name | None = None
    """One of the comparisons; without it, all."""

    layer: Natural = 0
    """Index of the layer whose weights are used, from 0."""

    steps: Natural = 400
    """Updates of the two small models that are trained here, with a mask and without; 0 leaves
    them out."""

    picture: str | None = None
    """A file to draw the numbers in; needs matplotlib."""


def compare(word: str | None, options: Compare) -> int:
    """Every variant beside what the run has."""
    if options.only == "never_masked" and not options.steps:
        raise UserError("--only never_masked trains two models, and --steps 0 leaves them out")
    if options.picture:
        new_picture(options.picture)  # rather refused now than at the end
    subject = Subject(word, options)
    attn, prompt_T = subject.layer(options.layer), subject.prompt_T
    sequences_BT = subject.sequences(options.sequences)
    seen = capture(subject.model, prompt_T[None]).layers[options.layer]
    other_T = sequences_BT[-1, : max(1, len(prompt_T) * 2 // 3)]
    source_BSC = capture(subject.model, other_T[None]).layers[options.layer].x_BTC
    run = printable(str(subject.run))
    print(f"layer {options.layer} of {run}, on a prompt of {len(prompt_T)} tokens")
    comparisons = layer_comparisons(attn, seen, source_BSC) | {
        "trained_relu": lambda: trained_with_relu(subject.model, sequences_BT),
        "unmasked": lambda: mask_taken_away(subject.model, sequences_BT),
    }
    if options.steps:
        comparisons["never_masked"] = lambda: mask_from_the_start(subject, options.steps)
    shown = []
    for name, compute in comparisons.items():
        if options.only in (None, name):
            shown.append(compute())
            show(shown[-1])
    if options.picture:
        draw(options.picture, shown)
    return 0


def show(comparison: Comparison) -> None:
    """Title, numbers, sentence."""
    print("\n" + textwrap.fill(comparison.title, 100))
    width = max(map(len, comparison.numbers))
    for name, number in comparison.numbers.items():
        shown = f"{number:,.4f}".rstrip("0").rstrip(".")
        if 0 < abs(number) < 1e-3:
            shown = f"{number:.1e}"
        print(f"    {name:<{width}}  {shown:>10}")
    print(textwrap.fill(comparison.why, 100, initial_indent="  ", subsequent_indent="  "))
    for how, text in comparison.texts.items():
        print(f"    {how}, it generates: {text}")


def draw(path: str, comparisons: list[Comparison]) -> None:
    """The numbers of each as bars, one comparison below the other."""
    figure, panels = new_picture(path, len(comparisons), columns=1)
    for axes, comparison in zip(panels, comparisons, strict=True):
        names = [textwrap.fill(name, 48) for name in comparison.numbers]
        bars = axes.barh(names, list(comparison.numbers.values()), color="tab:blue")
        axes.bar_label(bars, fmt="%.4g", padding=3, fontsize=7)
        axes.margins(x=0.15)
        axes.invert_yaxis()  # the first on top, as in the terminal
        axes.set_title(textwrap.fill(comparison.title, 60), fontsize=9)
        axes.tick_params(labelsize=7)
    save_picture(figure, path)


def trained_with_relu(model: GPT, sequences_BT: torch.Tensor) -> Comparison:
    """The trained model with a ReLU put in."""
    return Comparison(
        "C: the ReLU put into the trained model, after each W_O",
        {
            f"loss on {len(sequences_BT)} validation sequences, as trained": mean_loss(
                model, sequences_BT
            ),
            "with the ReLU": mean_loss(with_relu(model), sequences_BT),
        },
        "What the layers learned to subtract is gone.",
    )


def mask_taken_away(model: GPT, sequences_BT: torch.Tensor) -> Comparison:
    """The trained model without its mask."""
    masked, on = mean_loss(model, sequences_BT), f"{len(sequences_BT)} validation sequences"
    with without_mask(model):
        unmasked = mean_loss(model, sequences_BT)
    return Comparison(
        "the mask taken away after training",
        {f"loss on {on}, with the mask": masked, "without it": unmasked},
        "The heads never saw later tokens while they learned, so what comes from there is noise to "
        "them.",
    )


def mask_from_the_start(subject: Subject, steps: int) -> Comparison:
    """Train two small models on the run's text, one with a mask and one that never had one: their
    losses, and what they generate."""
    block_size = subject.config.model.block_size
    if not subject.copies:  # repeated strings need room for two copies
        block_size = min(block_size, 64)
    batches, settings = subject.batches(block_size), TrainConfig(max_steps=steps, batch_size=16)
    shape = ModelConfig(block_size=block_size, n_layer=2, n_head=2, n_embd=64)
    sequences_BT = spread_sequences(batches, block_size, 32)
    print(f"training two small models for {steps} steps each", file=sys.stderr)
    losses, texts = {}, {}
    for how, masked in (("trained with", True), ("trained without", False)):
        torch.manual_seed(settings.seed)
        model = GPT(shape, subject.V)
        optimizer = make_optimizer(model, settings)
        with contextlib.nullcontext() if masked else without_mask(model):
            for step in range(steps):
                batch = batches.train(step, settings.batch_size)
                train_step(model, optimizer, batch, settings, get_lr_scale(step, settings))
        losses[f"{how}: loss with the mask"] = mean_loss(model, sequences_BT)
        with without_mask(model):
            losses[f"{how}: loss without it"] = mean_loss(model, sequences_BT)
        generator = torch.Generator().manual_seed(settings.seed)
        tokens = generate(model, sequences_BT[:1, :8], 60, Sampling(), generator)
        texts[how] = "".join(visible(subject.vocab[int(token)]) for token in tokens)
    title = f"no mask from the start: two small models (2 layers x 64), {steps} steps each"
    why = (
        "Without a mask the next token is in sight and the model learns to copy it from there; "
        "generating, where there is no next token yet, it knows nothing."
    )
    return Comparison(title, losses, why, texts)
