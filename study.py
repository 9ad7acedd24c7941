"""Look inside the attention of a trained run: newest by default, on any prompt.

python study.py trace      one layer step by step: formulas, shapes, numbers
python study.py verify     proofs that what is shown is what was trained, and that nothing leaks
python study.py compare    what each choice in attention does, on this run's weights
python study.py heads      every head: its scores, and the loss without it
python study.py report     one HTML page with all of it, to open from disk
python study.py heads runs/my-run --prompt "ROMEO:"      another run, another text
python study.py trace --help                             every flag of a verb
"""

import signal

if __name__ == "__main__":  # until there is something to save, Ctrl-C ends at once and quietly
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import dataclasses
import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from common.atomic import write_atomically
from common.errors import UserError, command, require_at_least
from common.tables import print_table, visible
from configs.load import build, make_parser, nearest, read_flags, split_positional, to_plain
from data.batches import Batches, open_batches
from lens import checks, heads, trace, variants
from lens.capture import blocks_of, capture, without_mask
from lens.metrics import SCORES, SINK
from lens.report.data import Texts, report_data
from lens.report.page import MARK, page
from model.attention import MultiHeadAttention
from model.config import ModelConfig
from model.generate import generate
from model.gpt import GPT
from run.folder import RUNS, SavedRun, find_run, open_run
from run.log import read_metrics
from run.snapshots import find_snapshots, load_snapshot
from train import train_step
from training.config import TrainConfig
from training.optim import Optimizer, schedule

PROMPT_TOKENS = 128  # of the validation text, where no prompt is given
MAX_TOKENS = 256  # of a prompt: the maps of a longer one are too large to send, and to see
REPEATS = 64  # random strings that copying is measured on


@dataclass(frozen=True)
class Common:
    """Flags that every verb has."""

    prompt: str | None = None
    """The text to look at; without it, the beginning of the validation split."""

    source: str | None = None
    """The run's text, where it no longer lies where the run found it; or another text."""

    checkpoint: Literal["best", "last"] = "best"
    """The weights of the lowest validation loss, or those of the last step."""

    def __post_init__(self) -> None:
        if self.prompt == "":
            raise ValueError("--prompt is empty; leave it out to look at the validation text")
        if self.source == "":
            raise ValueError("--source is empty; leave it out to read the run's own text")


@dataclass(frozen=True)
class Measured(Common):
    """Flags of the verbs that measure on the validation split."""

    windows: int = 32
    """Windows, spread evenly over the validation split, that scores and losses are means over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, windows=self.windows)


@dataclass(frozen=True)
class Trace(Common):
    """One attention layer, step by step"""

    layer: int = 0
    """Which, counted from 0."""

    head: int = 0
    """Whose scores and weights are printed, counted from 0."""

    random: str | None = None
    """Instead of a run: descriptions A, B and C on random input of this shape, as 4,10,512."""

    n_head: int = 8
    """Heads of those."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, layer=self.layer, head=self.head)
        require_at_least(1, n_head=self.n_head)


@dataclass(frozen=True)
class Verify(Common):
    """Proofs on a run's own weights"""


@dataclass(frozen=True)
class Compare(Measured):
    """What each choice in attention does"""

    layer: int = 0
    """Whose weights are used, counted from 0."""

    steps: int = 400
    """Updates of the two small models that are trained here, with a mask and without; 0 leaves
    them out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, layer=self.layer, steps=self.steps)


@dataclass(frozen=True)
class Heads(Measured):
    """Every head: its scores, and the loss without it"""

    period: int | None = None
    """Length of the random strings whose copying is scored; without it, one that the run knows."""

    json: bool = False
    """Print a list of objects, one a head, and nothing else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period is not None:
            require_at_least(2, period=self.period)


@dataclass(frozen=True)
class Report(Measured):
    """One HTML page, to open from disk"""

    out: str | None = None
    """Where to write it; without it, report.html in the run's folder."""


class Subject:
    """What is studied: a run's weights, and texts for them to read. All of it on the CPU."""

    def __init__(self, word: str | None, options: Common) -> None:
        self.options = options
        self.run = find_run(word)
        self.saved: SavedRun = open_run(self.run, options.checkpoint)
        self.config, self.tokenizer = self.saved.config, self.saved.tokenizer
        self.model = self.saved.model(torch.device("cpu"))
        self.vocab = [self.tokenizer.decode([i]) for i in range(self.tokenizer.vocab_size)]
        if self.config.data.tokenizer == "byte":
            self.vocab = [chr(i) if i < 128 else f"\\x{i:02x}" for i in range(256)]
        loss = self.saved.header.val_loss
        about = "not evaluated yet" if loss is None else f"validation loss {loss:.4f}"
        said = f"{self.saved.path}, step {self.saved.header.step}, {about}"
        print(said, file=sys.stderr)

    @cached_property
    def batches(self) -> Batches:
        """The run's text, in windows of the run's length."""
        return self.text(self.config.model.block_size)

    def text(self, block_size: int) -> Batches:
        """The run's text, or that of --source, in windows of a length.

        Raises:
            UserError: when it is not there any more, or too short.
        """
        config = self.config.data
        if self.options.source is not None:
            config = dataclasses.replace(config, source=self.options.source)
        try:
            return open_batches(config, block_size, self.config.train.seed, self.tokenizer)
        except UserError as error:
            hint = "" if self.options.source else "; name the text with --source FILE"
            raise UserError(f"{error}{hint}") from None

    @cached_property
    def prompt_T(self) -> Tensor:
        """The tokens to look at: two at least, at most a window of them and `MAX_TOKENS`."""
        block_size, data = self.config.model.block_size, self.config.data
        if self.options.prompt is not None:
            tokens = torch.from_numpy(self.tokenizer.encode(self.options.prompt).astype("int64"))
        elif data.source == "repeat" and self.options.source is None:
            tokens = heads.repeated(self.tokenizer.vocab_size, self.period(), 1)[0]
        else:
            tokens = next(self.batches.validation(1))[0, : min(block_size, PROMPT_TOKENS)]
        longest = min(block_size, MAX_TOKENS)
        if len(tokens) > longest:
            print(f"note: of {len(tokens)} tokens the first {longest} are shown", file=sys.stderr)
        tokens = tokens[:longest]
        if len(tokens) < 2:
            raise UserError(
                "there is nothing to look back at: give a --prompt of two tokens or more"
            )
        return tokens

    def windows(self, count: int) -> Tensor:
        """(count, block_size + 1) or fewer, spread evenly over the validation split.

        Raises:
            UserError: when there are not two of them.
        """
        windows = spread_windows(self.batches, self.config.model.block_size, count)
        if len(windows) < 2:
            raise UserError(
                "the validation split has fewer than two windows; name a longer --source"
            )
        return windows

    def tokens(self) -> list[str]:
        """The prompt as texts."""
        return [self.vocab[token] for token in self.prompt_T.tolist()]

    def layer(self, number: int) -> MultiHeadAttention:
        """Attention of a layer.

        Raises:
            UserError: when there is no such layer.
        """
        if number >= self.config.model.n_layer:
            raise UserError(
                f"--layer {number}: the layers are 0 to {self.config.model.n_layer - 1}"
            )
        return blocks_of(self.model)[number].attn

    def periods(self) -> list[int]:
        """Lengths of strings to copy: of a run on repeated strings inside and outside the range it
        was trained on; of others, the longest that fits and a half and a quarter of it."""
        data, longest = self.config.data, self.config.model.block_size // 2
        if data.source == "repeat":
            low, high = data.repeat_min_period, data.repeat_max_period
            wanted = [low // 2, low, (low + high) // 2, high, high + high // 4, high + high // 2]
        else:
            wanted = [longest // 4, longest // 2, longest]
        longest = min(longest, self.tokenizer.vocab_size)
        return sorted({period for period in wanted if 2 <= period <= longest})

    def period(self, asked: int | None = None) -> int:
        """The length that scores are measured at.

        Raises:
            UserError: when it does not fit twice into the context, or the vocabulary is too small.
        """
        data, longest = self.config.data, self.config.model.block_size // 2
        longest = min(longest, self.tokenizer.vocab_size)
        if longest < 2:
            raise UserError("copying needs a context of 4 tokens and a vocabulary of 2 at least")
        if asked is not None and not 2 <= asked <= longest:
            raise UserError(
                f"--period {asked} must be from 2 to {longest}, to fit twice into the context"
            )
        middle = (data.repeat_min_period + data.repeat_max_period) // 2
        return asked or min(middle if data.source == "repeat" else 32, longest)


def spread_windows(batches: Batches, block_size: int, count: int) -> Tensor:
    """(count, block_size + 1) or fewer, spread evenly over the validation split."""
    full = sum(w.size(1) == block_size + 1 for w in batches.validation(1))  # all but the last
    if not full:
        return torch.empty(0, block_size + 1, dtype=torch.long)
    places = set(torch.linspace(0, full - 1, min(count, full)).round().long().tolist())
    return torch.cat([w for i, w in enumerate(batches.validation(1)) if i in places])


def own_type(saved: SavedRun) -> torch.dtype:
    """What the run computed in."""
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return kinds.get(saved.header.precision, torch.float32)


# --- trace ---------------------------------------------------------------------------------------


def trace_run(word: str | None, options: Trace) -> int:
    """Of a run; of descriptions A, B and C where --random is given or there is no run yet."""
    if options.random is None and word is None and not list(RUNS.glob("*/last.safetensors")):
        print("there is no run yet: here are descriptions A, B and C on inputs of their own\n")
        options = dataclasses.replace(options, random="4,10,512")
    if options.random is not None and word is not None:
        raise UserError("--random shows descriptions without a run; leave one of the two out")
    if options.random is not None:
        trace_descriptions(options.random, options.n_head)
        return 0
    subject = Subject(word, options)
    attn, config = subject.layer(options.layer), subject.config.model
    if options.head >= config.n_head:
        raise UserError(f"--head {options.head}: the heads are 0 to {config.n_head - 1}")
    seen = capture(subject.model, subject.prompt_T[None]).layers[options.layer]
    steps = trace.trace(attn, seen.x_BTC, seen)
    B, T, C = seen.x_BTC.shape
    print(
        f"layer {options.layer} on {T} tokens: B = {B}, T = S = {T}, C = {C}, H = {config.n_head}, "
        f"D = C / H = {config.head_width}\n"
    )
    trace.print_steps(steps)
    names = trace.names_of(subject.tokens())
    by_name = {step.name: step for step in steps}
    for name, title in (
        ("scores", "scores before the mask"),
        ("masked", "after the mask (· is hidden: -inf, no number at all)"),
        ("weights A", "weights after the softmax; each row sums to 1"),
    ):
        step = by_name[name]
        hidden = None if step.masked is None else step.masked[0, options.head]
        matrix = step.value[0, options.head]
        trace.print_matrix(f"head {options.head}: {title}", matrix, names, hidden)
    return 0


def trace_descriptions(shape: str, n_head: int) -> None:
    """Raises: UserError, for a shape that is none, or cannot be split into heads."""
    try:
        B, T, C = (int(number) for number in shape.split(","))
        if min(B, T, C) < 1 or B * T * max(C, n_head * T) > 10**8:
            raise ValueError
    except ValueError:
        raise UserError(f"--random {shape} must be B,T,C, as 4,10,512, and not too large") from None
    if C % n_head:
        raise UserError(f"--random {shape}: C = {C} must be divisible by --n_head {n_head}")
    variants.print_descriptions(B, T, C, n_head)


# --- verify --------------------------------------------------------------------------------------


def verify(word: str | None, options: Verify) -> int:
    """Exit code 1 when a proof fails."""
    subject = Subject(word, options)
    proofs = checks.prove(subject.model, subject.prompt_T, own_type(subject.saved))
    rows = [["proof", "in", "verdict", "largest difference", "tolerance", "where"]]
    for proof in proofs:
        rows.append(
            [
                proof.name,
                proof.dtype,
                proof.verdict,
                "" if proof.largest is None else f"{proof.largest:.1e}",
                "" if proof.tolerance is None else f"{proof.tolerance:.0e}",
                proof.where if proof.verdict == "failed" else "",
            ]
        )
    print_table(rows, words=3)
    counts = {
        word: [p for p in proofs if p.verdict.startswith(word)] for word in ("passed", "failed")
    }
    rest = len(proofs) - len(counts["passed"]) - len(counts["failed"])
    print(
        f"\n{len(counts['passed'])} passed, {len(counts['failed'])} failed, {rest} not comparable; "
        f"differences are shares of the largest number compared"
    )
    for proof in counts["failed"]:
        print(f"failed: {proof.name} ({proof.dtype}): {proof.where}", file=sys.stderr)
    return 1 if counts["failed"] else 0


# --- compare -------------------------------------------------------------------------------------


def compare(word: str | None, options: Compare) -> int:
    """Every variant beside what the run has."""
    subject = Subject(word, options)
    attn, prompt_T = subject.layer(options.layer), subject.prompt_T
    windows_BT = subject.windows(options.windows)
    # Repeated strings need windows that have room for two copies.
    size = subject.config.model.block_size
    size = size if subject.config.data.source == "repeat" else min(size, 64)
    small = subject.text(size) if options.steps else None
    seen = capture(subject.model, prompt_T[None]).layers[options.layer]
    other_T = windows_BT[-1, : max(1, len(prompt_T) * 2 // 3)]
    source_BSC = capture(subject.model, other_T[None]).layers[options.layer].x_BTC
    print(f"layer {options.layer} of {subject.run}, on a prompt of {len(prompt_T)} tokens")
    for comparison in variants.compare_layer(attn, seen, source_BSC):
        say(comparison)

    whole = heads.mean_loss(subject.model, windows_BT)
    with_relu = heads.mean_loss(variants.with_relu(subject.model), windows_BT)
    with without_mask(subject.model):
        unmasked = heads.mean_loss(subject.model, windows_BT)
    on = f"loss on {len(windows_BT)} validation windows"
    say(
        variants.Comparison(
            "C: the ReLU put into the trained model, after each W_O",
            [(f"{on}, as trained", whole), ("with the ReLU", with_relu)],
            "What the layers learned to subtract is gone.",
        )
    )
    say(
        variants.Comparison(
            "the mask taken away after training",
            [(f"{on}, with the mask", whole), ("without it", unmasked)],
            "The heads never saw the future while they learned, so what comes from there is noise "
            "to them.",
        )
    )
    if small is not None:
        mask_from_the_start(subject, small, options.steps)
    return 0


def say(comparison: variants.Comparison) -> None:
    """Title, numbers, sentence."""
    print("\n" + textwrap.fill(comparison.title, 100))
    width = max(len(name) for name, _ in comparison.numbers)
    for name, number in comparison.numbers:
        shown = (
            f"{number:.1e}" if 0 < abs(number) < 1e-3 else f"{number:,.4f}".rstrip("0").rstrip(".")
        )
        print(f"    {name:<{width}}  {shown:>10}")
    print(textwrap.fill(comparison.why, 100, initial_indent="  ", subsequent_indent="  "))


def mask_from_the_start(subject: Subject, batches: Batches, steps: int) -> None:
    """Train two small models on the run's text, one with a mask and one that never had one; say
    their losses and what they write."""
    settings = TrainConfig(max_steps=steps, batch_size=16)
    block_size = batches.train(0, 1).size(1) - 1
    shape = ModelConfig(block_size=block_size, n_layer=2, n_head=2, n_embd=64)
    windows_BT, numbers, written = spread_windows(batches, block_size, 32), [], []
    for masked in (True, False):
        torch.manual_seed(settings.seed)
        model = GPT(shape, subject.tokenizer.vocab_size)
        optimizer = Optimizer(model, settings)
        with contextlib.nullcontext() if masked else without_mask(model):
            for step in range(steps):
                windows = batches.train(step, settings.batch_size)
                train_step(model, model, optimizer, schedule(step, settings), windows, settings)
        how = "trained with" if masked else "trained without"
        numbers.append((f"{how}: loss with the mask", heads.mean_loss(model, windows_BT)))
        with without_mask(model):
            numbers.append((f"{how}: loss without it", heads.mean_loss(model, windows_BT)))
        generator = torch.Generator().manual_seed(settings.seed)
        stream = generate(model, windows_BT[:1, :8], 60, temperature=0.8, generator=generator)
        text = "".join(visible(subject.vocab[int(token)]) for token in stream)
        written.append(f"    {how}, it writes: {text}")
    say(
        variants.Comparison(
            f"no mask from the start: two small models (2 layers x 64), {steps} steps each",
            numbers,
            "Without a mask the next token is in sight and the model learns to copy it from there; "
            "writing, where there is no next token yet, it knows nothing.",
        )
    )
    print("\n".join(written))


# --- heads ---------------------------------------------------------------------------------------


def study_heads(word: str | None, options: Heads) -> int:
    """A table, or JSON."""
    subject = Subject(word, options)
    model, config = subject.model, subject.config.model
    windows_BT, period = subject.windows(options.windows), subject.period(options.period)
    text_BT = windows_BT[:, :-1] if options.prompt is None else subject.prompt_T[None]
    repeats_BT = heads.repeated(subject.tokenizer.vocab_size, period, REPEATS)
    scores = heads.score_heads(model, text_BT, repeats_BT)
    ablation = heads.ablate(model, windows_BT)
    cuts = {
        "zero": ablation.zero_LH,
        "zero_error": ablation.zero_error_LH,
        "mean": ablation.mean_LH,
        "mean_error": ablation.mean_error_LH,
    }
    places = [(i, h) for i in range(config.n_layer) for h in range(config.n_head)]
    if options.json:
        objects = [
            {"layer": i, "head": h}
            | {key: float(value[i, h]) for key, value in scores.items()}
            | {f"ablation_{key}": float(value[i, h]) for key, value in cuts.items()}
            for i, h in places
        ]
        print(json.dumps(objects))
        return 0
    B, T = text_BT.shape
    text = f"{B} validation windows of {T} tokens" if options.prompt is None else "the prompt"
    print(
        f"scores over {text}; copying over {REPEATS} random strings of "
        f"{period} different tokens, each twice\n"
    )
    rows = [["head", *(score.name for score in SCORES), "change if zero", "change if mean"]]
    uniform = [score.uniform(2 * period if score.repeats else T) for score in SCORES]
    rows.append(["uniform", *(f"{number:.3f}" for number in uniform), "", ""])
    for i, h in places:
        cells = [f"{float(scores[score.key][i, h]):.3f}" for score in SCORES]
        for kind in ("zero", "mean"):
            change, error = float(cuts[kind][i, h]), float(cuts[f"{kind}_error"][i, h])
            cells.append(f"{change:+.4f} ± {error:.4f}")
        sink = " sink" if float(scores["first_token"][i, h]) > SINK else ""
        rows.append([f"L{i}H{h}{sink}", *cells])
    print_table(rows)
    print(
        f"\nwith all heads the loss on {len(windows_BT)} validation windows is {ablation.loss:.4f} "
        f"nats/token; the last columns are its change\nwhen a head's output is set to zero, or to "
        f"its mean, ± standard error. Attention weight is not importance.\n"
    )
    print_copying(subject)
    losses = heads.logit_lens(model, windows_BT)
    rows = [["logit lens", "loss, nats/token"]]
    names = ["embedding", *(f"after layer {i}" for i in range(config.n_layer))]
    rows += [[name, f"{loss:.4f}"] for name, loss in zip(names, losses, strict=True)]
    print_table(rows)
    return 0


def print_copying(subject: Subject) -> None:
    """How well random strings are copied, at several lengths."""
    data = subject.config.data
    rows = [
        ["copying", "trained on", "loss, first copy", "second", "ratio", "induction, best head"]
    ]
    for period in subject.periods():
        copying = heads.measure_copying(subject.model, period, REPEATS)
        best = int(copying.induction_LH.argmax())
        layer, head = divmod(best, subject.config.model.n_head)
        inside = data.repeat_min_period <= period <= data.repeat_max_period
        trained = "yes" if inside and data.source == "repeat" else "no"
        rows.append(
            [
                f"period {period}",
                trained,
                f"{copying.first:.3f}",
                f"{copying.second:.3f}",
                f"{copying.second / copying.first:.3f}",
                f"{float(copying.induction_LH.max()):.3f} L{layer}H{head}",
            ]
        )
    if len(rows) > 1:
        print_table(rows)
        print()


# --- report --------------------------------------------------------------------------------------


def report(word: str | None, options: Report) -> int:
    """Write the page."""
    subject = Subject(word, options)
    path = Path(options.out) if options.out is not None else subject.run / "report.html"
    if not path.parent.is_dir() or path.is_dir():
        raise UserError(f"--out {options.out!r} should name a file in a folder that is there")
    if path.exists() and not path.read_bytes().startswith(MARK.encode()):
        raise UserError(f"{path} exists and is not a report; name another file with --out")
    model, header, config = subject.model, subject.saved.header, subject.config
    windows_BT = subject.windows(options.windows)
    repeats_BT = heads.repeated(subject.tokenizer.vocab_size, subject.period(), REPEATS)
    texts = Texts(subject.prompt_T, windows_BT, repeats_BT)
    say_now("proofs")
    proofs = checks.prove(model, subject.prompt_T, own_type(subject.saved))
    say_now("ablation")
    ablation = heads.ablate(model, windows_BT)
    lens_losses = heads.logit_lens(model, windows_BT)

    def models() -> Iterator[tuple[int, GPT]]:
        along = GPT(config.model, subject.tokenizer.vocab_size).eval()
        for step, file in find_snapshots(subject.run).items():
            if step < header.step:
                say_now(f"step {step}")
                load_snapshot(along, file)
                yield step, along
        yield header.step, model

    about = {
        "name": subject.run.name,
        "step": header.step,
        "val_loss": header.val_loss,
        "unit": config.data.tokenizer,
        "parameters": model.num_parameters(),
        "about": (
            f"{config.model.n_layer} layers x {config.model.n_embd} wide, "
            f"{config.model.n_head} heads, context {config.model.block_size}"
        ),
        "config": to_plain(config),
        "made": time.strftime("%Y-%m-%d"),
        "torch": header.torch,
    }
    data = report_data(
        about,
        subject.vocab,
        texts,
        models(),
        ablation,
        heads.measure_copying(model, subject.period(), REPEATS),
        lens_losses,
        proofs,
        loss_curve(subject.run),
        "induction" if config.data.source == "repeat" else "entropy",
    )
    content = page(data).encode()
    write_atomically(path, content)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    failed = sum(proof.verdict == "failed" for proof in proofs)
    print(f"{path}, {len(content) / 1e6:.1f} MB: open it in a browser")
    if failed:
        print(f"note: {failed} proofs failed; see python study.py verify {subject.run}")
    return 0


def say_now(what: str) -> None:
    """What is being computed, on one line that is written over; silent where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what} ...", end="", flush=True, file=sys.stderr)


def loss_curve(run: Path) -> dict[str, list[float]]:
    """Validation loss over training, as far as metrics.jsonl has it."""
    evaluated = [line for line in read_metrics(run) if "val_loss" in line]
    return {key: [line[key] for line in evaluated] for key in ("step", "val_loss")}


VERBS: dict[str, tuple[type, Callable[[str | None, Any], int]]] = {
    "trace": (Trace, trace_run),
    "verify": (Verify, verify),
    "compare": (Compare, compare),
    "heads": (Heads, study_heads),
    "report": (Report, report),
}


@command
def main(argv: list[str]) -> int:
    """Read the verb, the run and the flags."""
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    if not argv or argv[0].startswith("-"):
        raise UserError(
            f"name a verb first: python study.py {' | '.join(VERBS)} [RUN] [--flag ...]"
        )
    verb, *rest = argv
    if verb not in VERBS:
        raise UserError(f"there is no verb {verb}{nearest(verb, VERBS)}")
    kind, do = VERBS[verb]
    usage = f"python study.py {verb} [RUN] [--flag VALUE ...]"
    parser = make_parser({"": kind}, usage, "Of the newest run, unless one is named.")
    words, flags = split_positional(rest)
    options: Any = build(kind, read_flags(parser, flags))
    return do(words[0] if words else None, options)


if __name__ == "__main__":
    sys.exit(main())
