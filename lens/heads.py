"""The verb heads: what each head does, what the model loses without it, and what it copies."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError
from common.fields import STRICT
from common.tables import print_table
from lens.capture import head_replaced
from lens.composition import chance_level, composition
from lens.measure import Ablation, ablate, logit_lens, measure_copying, repeated, score_heads
from lens.metrics import SCORES, SINK
from lens.pictures import new_picture, save_picture
from lens.subject import REPEATS, MeasureOptions, Subject

PAIRS = 12  # of heads that compose most, that are printed


@dataclass(frozen=True, config=STRICT)
class Heads(MeasureOptions):
    """Every head: its scores, and the loss without it"""

    without: str | None = None
    """Heads to cut first, such as L0H1,L1H0: their output is zero in all that is measured."""

    period: Annotated[int, Field(ge=2, lt=2**63)] | None = None
    """Length of the random strings whose copying is scored; without it, one that suits the run."""

    picture: str | None = None
    """A file to draw every score in, against the loss without the head; needs matplotlib."""

    json: bool = False
    """Print only JSON: the step, the loss, copying at each length, and an object per head."""


def heads(word: str | None, options: Heads) -> int:
    """A table, or JSON."""
    if options.json and options.picture:
        raise UserError("--json prints nothing else; ask for --picture without it")
    if options.picture:
        new_picture(options.picture)  # rather refused now than after minutes
    subject = Subject(word, options)
    with cut(subject, options.without):
        return measure(subject, options)


@contextmanager
def cut(subject: Subject, names: str | None) -> Iterator[None]:
    """Inside the `with` block these heads write nothing.

    Raises:
        UserError: for what is no head of the model.
    """
    config = subject.config.model
    with ExitStack() as held:
        for name in names.split(",") if names else []:
            found = re.fullmatch(r"L(\d+)H(\d+)", name.strip(), re.IGNORECASE)
            layer, head = map(int, found.groups()) if found else (config.n_layer, 0)
            if layer >= config.n_layer or head >= config.n_head:
                raise UserError(
                    f"--without {name!r}: name heads as L0H1,L1H0; they are "
                    f"L0H0 to L{config.n_layer - 1}H{config.n_head - 1}"
                )
            held.enter_context(head_replaced(subject.model, layer, head, 0.0))
        yield


def measure(subject: Subject, options: Heads) -> int:
    model, config = subject.model, subject.config.model
    sequences_BT, period = subject.sequences(options.sequences), subject.period(options.period)
    text_BT = sequences_BT[:, :-1] if options.prompt is None else subject.prompt_T[None]
    scores = score_heads(model, text_BT, repeated(subject.V, period, REPEATS))
    ablation = ablate(model, sequences_BT)
    places = [(i, h) for i in range(config.n_layer) for h in range(config.n_head)]
    if options.json:
        numbers = scores | {f"ablation_{key}": value for key, value in ablation.changes.items()}
        objects = [
            {"layer": i, "head": h} | {key: float(value[i, h]) for key, value in numbers.items()}
            for i, h in places
        ]
        lengths = [measure_copying(model, each, REPEATS) for each in subject.periods()]
        found = {
            "step": subject.header.state.step,
            "loss": ablation.loss,
            "period": period,
            "copying": [
                {"period": c.period, "first": c.first, "second": c.second} for c in lengths
            ],
        }
        print(json.dumps(found | {"heads": objects}))
        return 0
    B, T = text_BT.shape
    text = f"{B} validation sequences of {T} tokens" if options.prompt is None else "the prompt"
    if options.without:
        print(f"measured without {options.without}")
    print(
        f"scores over {text}; copying over {REPEATS} random strings of {period} different tokens, "
        f"each twice\n"
    )
    uniform = [score.uniform(2 * period if score.repeats else T) for score in SCORES]
    rows = [
        ["head", *(score.name for score in SCORES), "change if zero", "change if mean"],
        ["uniform", *(f"{number:.3f}" for number in uniform), "", ""],
    ]
    for i, h in places:
        sink = " sink" if scores["first_token"][i, h] > SINK else ""
        cells = [f"{scores[score.key][i, h]:.3f}" for score in SCORES]
        for kind in ("zero", "mean"):
            change, error = ablation.changes[kind][i, h], ablation.changes[f"{kind}_error"][i, h]
            cells.append(f"{change:+.4f} ± {error:.4f}")
        rows.append([f"L{i}H{h}{sink}", *cells])
    print_table(rows)
    whole = f"without {options.without}" if options.without else "with all heads"
    print(
        f"\n{whole} the loss on {len(sequences_BT)} validation sequences is "
        f"{ablation.loss:.4f} nats/token; the last columns are its change\nwhen a head's output is "
        f"set to zero, or to its mean, ± standard error. Attention weight is not importance.\n"
    )
    if options.picture:
        draw(options.picture, places, scores, uniform, ablation)
    print_copying(subject)
    print_composition(subject)
    rows = [["logit lens", "loss, nats/token"]]
    for i, loss in enumerate(logit_lens(model, sequences_BT)):
        rows.append([f"after layer {i - 1}" if i else "embedding", f"{loss:.4f}"])
    print_table(rows)
    return 0


def print_copying(subject: Subject) -> None:
    """How well random strings are copied, at several lengths."""
    data, H = subject.config.data, subject.config.model.n_head
    rows = [
        ["copying", "trained on", "loss, first copy", "second", "ratio", "induction, best head"]
    ]
    for period in subject.periods():
        copying = measure_copying(subject.model, period, REPEATS)
        inside = data.repeat_min_period <= period <= data.repeat_max_period
        losses = (copying.first, copying.second, copying.second / copying.first)
        layer, head = divmod(int(copying.induction_LH.argmax()), H)
        rows.append(
            [
                f"period {period}",
                "yes" if inside and subject.copies else "no",
                *(f"{number:.3f}" for number in losses),
                f"{copying.induction_LH.max():.3f} L{layer}H{head}",
            ]
        )
    if len(rows) > 1:
        print_table(rows)
        print()


def print_composition(subject: Subject) -> None:
    """The pairs of heads in different layers whose weights fit together best."""
    found = sorted(composition(subject.model), key=lambda pair: -max(pair.scores.values()))
    if not found:
        return
    config = subject.config.model
    chance = f"{chance_level(config.n_embd, config.head_width):.3f}"
    rows = [["composition", "Q", "K", "V"], ["chance", chance, chance, chance]]
    for pair in found[:PAIRS]:
        (i, a), (j, b) = pair.earlier, pair.later
        scores = [f"{score:.3f}" for score in pair.scores.values()]
        rows.append([f"L{i}H{a} -> L{j}H{b}", *scores])
    print_table(rows)
    if len(found) > PAIRS:
        print(f"(the {PAIRS} of {len(found)} pairs with the highest score)")
    print()


def draw(
    path: str,
    places: list[tuple[int, int]],
    scores: dict[str, Tensor],
    uniform: list[float],
    ablation: Ablation,
) -> None:
    """A panel a score: each head by its score and by how much the loss rises without it."""
    figure, panels = new_picture(path, len(SCORES))
    for axes, score, chance in zip(panels, SCORES, uniform, strict=True):
        axes.axvline(chance, linestyle="--", linewidth=1, color="gray")  # uniform attention
        axes.axhline(0, linewidth=0.5, color="gray")
        for i, h in places:
            x, y = float(scores[score.key][i, h]), float(ablation.changes["zero"][i, h])
            error = float(ablation.changes["zero_error"][i, h])
            axes.errorbar(x, y, error, fmt="o", markersize=3, color=f"C{i % 10}")
            axes.annotate(f"L{i}H{h}", (x, y), (3, 3), textcoords="offset points", fontsize=6)
        axes.set_title(score.name, fontsize=9)
        axes.tick_params(labelsize=7)
    figure.supxlabel("score (dashed: uniform attention)", fontsize=9)
    figure.supylabel("rise of the loss without the head, nats", fontsize=9)
    save_picture(figure, path)
