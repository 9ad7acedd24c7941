"""The command heads: what each head does, the loss with it ablated, and what the model copies."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.errors import UserError
from common.fields import STRICT
from common.tables import print_table
from lens.capture import head_replaced
from lens.composition import composition, random_score
from lens.measure import ablate, logit_lens, measure_copying, repeated, score_heads
from lens.metrics import SCORES, SINK
from lens.subject import REPEATS, MeasureOptions, Subject
from model.gpt import GPT

FORMATS = (".svg", ".png", ".pdf")
PAIRS = 12  # of heads that compose most, that are printed


@dataclass(frozen=True, config=STRICT)
class Heads(MeasureOptions):
    """Every head: its scores, and the loss with it ablated"""

    without: str | None = None
    """Heads to ablate first, such as L0H1,L1H0: their output is zero in all that is measured."""

    period: Annotated[int, Field(ge=2)] | None = None
    """Length of the random strings whose copying is scored; if omitted, one that suits the run."""

    picture: str | None = None
    """A file to plot every score in, against the loss change; needs matplotlib."""

    json: bool = False
    """Print only JSON: every score and loss change, a list with a number per head."""


def heads(word: str | None, options: Heads) -> int:
    """Print tables, or JSON."""
    if options.json and options.picture:
        raise UserError("--json prints nothing else; use --picture without it")
    figure = options.picture and new_figure(options.picture)  # Fail before the slow measurements.
    subject = Subject(word, options)
    subject.seen  # noqa: B018
    with ablated(subject.model, options.without):
        measured = measure(subject, options)
    if options.json:
        print(json.dumps(measured))
        return 0
    if options.without:
        print(f"measured without {options.without}")
    print_heads(measured)
    print_copying(subject, measured["copying"])
    print_composition(subject)
    rows = [["logit lens", "loss, nats/token"]]
    for i, loss in enumerate(measured["logit_lens"]):
        rows.append([f"after layer {i - 1}" if i else "embedding", f"{loss:.4f}"])
    print_table(rows)
    if options.picture:
        plot(figure, options.picture, measured)
    return 0


def names_of(model: GPT) -> list[str]:
    """Return the names of all heads, in order."""
    L, H = model.config.n_layer, model.config.n_head
    return [f"L{layer}H{head}" for layer in range(L) for head in range(H)]


@contextmanager
def ablated(model: GPT, names: str | None) -> Iterator[None]:
    """Set the output of these heads to zero inside the `with` block.

    Raises:
        UserError: for a name that is not a head of the model.
    """
    known = names_of(model)
    with ExitStack() as stack:
        for name in names.upper().split(",") if names else []:
            if name not in known:
                raise UserError(f"--without {name}: name heads from {known[0]} to {known[-1]}")
            layer, head = divmod(known.index(name), model.config.n_head)
            stack.enter_context(head_replaced(model, layer, head, 0.0))
        yield


def measure(subject: Subject, options: Heads) -> dict[str, Any]:
    """Measure what --json prints."""
    model, names = subject.model, names_of(subject.model)
    sequences_BT, period = subject.sequences(options.sequences), subject.period(options.period)
    text_BT = sequences_BT[:, :-1] if options.prompt is None else subject.prompt_T[None]
    scores = score_heads(model, text_BT, repeated(subject.V, period, REPEATS))
    ablation, copying = ablate(model, sequences_BT), []
    for each in subject.periods():
        found = vars(measure_copying(model, each, REPEATS))
        induction_LH = found.pop("induction_LH")
        best = {"induction": induction_LH.max().item(), "head": names[induction_LH.argmax()]}
        copying.append(found | best)
    return {
        "step": subject.header.state.step,
        "loss": ablation.loss,
        "sequences": len(sequences_BT),
        "text": list(text_BT.shape),
        "period": period,
        "uniform": {s.key: s.uniform(2 * period if s.repeats else text_BT.size(1)) for s in SCORES},
        "heads": names,
        "scores": {key: score.flatten().tolist() for key, score in scores.items()},
        "changes": {key: change.flatten().tolist() for key, change in ablation.changes.items()},
        "copying": copying,
        "logit_lens": logit_lens(model, sequences_BT),
    }


def print_heads(measured: dict[str, Any]) -> None:
    """Print a row per head, under that of uniform attention."""
    text = " x ".join(map(str, measured["text"]))
    strings = f"{REPEATS} random strings of {measured['period']} distinct tokens, each twice"
    print(f"scores over {text} tokens; copying over {strings}\n")
    scores, changes, kinds = measured["scores"], measured["changes"], ("zero", "mean")
    rows = [
        ["head", *(s.name for s in SCORES), *(f"loss change ({kind} ablation)" for kind in kinds)],
        ["uniform", *(f"{number:.3f}" for number in measured["uniform"].values()), "", ""],
    ]
    for i, name in enumerate(measured["heads"]):
        sink = " sink" if scores["first_token"][i] > SINK else ""
        cells = [f"{score[i]:.3f}" for score in scores.values()]
        both = [f"{changes[k][i]:+.4f} ± {changes[f'{k}_error'][i]:.4f}" for k in kinds]
        rows.append([name + sink, *cells, *both])
    print_table(rows)
    loss, count = f"{measured['loss']:.4f} nats/token", measured["sequences"]
    print(f"\nloss {loss} on {count} validation sequences; changes ± standard error\n")


def print_copying(subject: Subject, copying: list[dict[str, Any]]) -> None:
    """Print how well random strings are copied, at several lengths."""
    low, high = subject.config.data.repeat_min_period, subject.config.data.repeat_max_period
    heading = ["trained on", "loss, first copy", "second", "ratio", "induction, best head"]
    rows = [["copying", *heading]]
    for period, first, second, induction, head in (found.values() for found in copying):
        trained = "yes" if subject.trained_on_repeats and low <= period <= high else "no"
        losses = [f"{number:.3f}" for number in (first, second, second / first)]
        rows.append([f"period {period}", trained, *losses, f"{induction:.3f} {head}"])
    print_table(rows)
    print()


def print_composition(subject: Subject) -> None:
    """Print the pairs of heads in different layers with the highest composition scores."""
    config = subject.config.model
    random = f"{random_score(config.n_embd, config.head_width):.3f}"
    rows = [["composition", "Q", "K", "V"], ["random", random, random, random]]
    pairs = sorted(composition(subject.model), key=lambda pair: -max(pair[2].values()))
    for (i, a), (j, b), scores in pairs[:PAIRS]:
        rows.append([f"L{i}H{a} -> L{j}H{b}", *(f"{score:.3f}" for score in scores.values())])
    print_table(rows)
    print()


def new_figure(path: str) -> Any:
    """Return a matplotlib figure, which is imported only here.

    Raises:
        UserError: if it could not be saved at `path`, or matplotlib is not installed.
    """
    place = Path(path).absolute()
    if place.suffix not in FORMATS or not place.parent.is_dir() or place.exists():
        known = ", ".join(FORMATS)
        raise UserError(f"--picture {path} must be a new file in a folder, and end in {known}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--picture is drawn by matplotlib: pip install matplotlib") from None
    return Figure(figsize=(12, 5.4), layout="constrained")


def plot(figure: Any, path: str, measured: dict[str, Any]) -> None:
    """Plot a panel per score: each head by its score and its loss change."""
    changes, errors = measured["changes"]["zero"], measured["changes"]["zero_error"]
    for axes, score in zip(figure.subplots(2, len(SCORES) // 2).flat, SCORES, strict=True):
        numbers = measured["scores"][score.key]
        axes.axvline(measured["uniform"][score.key], linestyle="--", linewidth=1, color="gray")
        axes.errorbar(numbers, changes, errors, fmt="o", markersize=3)
        for name, *place in zip(measured["heads"], numbers, changes, strict=True):
            axes.annotate(name, place, (3, 3), textcoords="offset points", fontsize=6)
        axes.set_title(score.name, fontsize=9)
    figure.supxlabel("score (dashed: uniform attention)", fontsize=9)
    figure.supylabel("loss change (zero ablation), nats", fontsize=9)
    figure.savefig(path)
    print(f"picture: {path}")
