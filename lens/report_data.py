"""The data of the report page: weights for its engine, PyTorch's logits to check the engine, and
results that need the corpus or PyTorch: losses, scores, ablation, checks."""

import copy
import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError, printable
from common.progress import progress
from formats.reference import check_reference
from lens.capture import capture
from lens.examples import examples_for_page
from lens.jobs import find_jobs, job_sequences
from lens.measure import (
    ablate,
    find_matches,
    mean_loss,
    measure_copying,
    measure_text,
    micro_batches,
    score_match,
)
from lens.metrics import MATCH, uniform_scores
from lens.subject import Subject
from lens.verify import check_model
from model.gpt import GPT
from page.html import SUPPORTED, WORD, make_html, pack, to_json
from page.weights import pack_weights
from training.checkpoint import load_snapshot
from training.evaluate import evaluate
from training.folder import find_snapshots
from training.machine import Processes

REFERENCE = 2**12  # approximate number of PyTorch's logits per snapshot
BASE64 = 4 / 3  # characters per byte
COMPARED = 4  # sequences on which snapshots are compared, to choose those that are shown
TRIED = 256  # texts


def check_supported(subject: Subject) -> None:
    """Check that the page can compute the model, before its text is read.

    Raises:
        UserError: if it cannot.
    """
    given = vars(subject.model.config) | {"tokenizer": subject.tokenizer.kind}
    for field, choices in SUPPORTED.items():
        if given[field] not in choices:
            raise UserError(f"the page does not support {field} {given[field]}")
    check_reference(subject.model, "the page")


def make_page(
    subject: Subject,
    sequences_BT: Tensor,
    snapshots: Iterable[tuple[int, GPT]],
    max_bytes: float,
) -> str:
    """Return the page, of at most `max_bytes`: the final weights, in half precision if they fit,
    and all snapshots in half precision, or as many as fit in 8 bits.

    Args:
        sequences_BT: block_size + 1 tokens each, for scores and losses.
        snapshots: steps and models in order; the subject's model has its own step.

    Raises:
        UserError: if the run's own weights do not fit.
    """
    model = subject.model
    packs = {bits: pack_weights(model.state_dict(), bits == 8)[0] for bits in (16, 8)}
    least = BASE64 * len(packs[8])
    if least > max_bytes:  # fail before the slow measurements
        raise too_small(max_bytes, least + 1e6)
    data = describe(subject, sequences_BT)
    taken = len(make_html(data, []).encode())
    # What a snapshot adds to the page: its measurements, and its weights in base64. The initial
    # weights, many of them zero, have fewer bytes.
    own_weights = measure_snapshot(subject, sequences_BT, model, False)
    numbers = 1.1 * len(to_json(own_weights[0])) + 100
    size = {bits: numbers + BASE64 * len(packed) for bits, packed in packs.items()}
    room, models = max_bytes - taken, [*snapshots]
    if size[8] > room:
        raise too_small(max_bytes, taken + size[8])
    own = 16 if size[16] <= room else 8
    others = 16 if size[16] * len(models) <= room else 8
    few_BT = sequences_BT[:COMPARED]
    losses = [mean_loss(each, few_BT) for _, each in progress(models, "comparing snapshots")]
    shown = [step for step, _ in models].index(subject.saved.header.state.step)
    chosen = choose_snapshots(losses, 1 + (room - size[own]) / size[others], shown)
    data["saved"], data["snapshots"] = len(models), []
    weights: list[bytes] = []
    for i in progress(chosen, "measuring snapshots"):
        step, snapshot = models[i]
        bits = own if i == shown else others
        is_done = i == shown and bits == 16
        measured, packed = (
            own_weights if is_done else measure_snapshot(subject, sequences_BT, snapshot, bits == 8)
        )
        data["snapshots"].append({"step": step, **measured})
        weights.insert(0 if i == shown else len(weights), packed)
    print(
        f"{len(chosen)} of {len(models)} snapshots fit --max_mb {max_bytes / 1e6:g}",
        file=sys.stderr,
    )
    return make_html(data, weights)


def describe(subject: Subject, sequences_BT: Tensor) -> dict[str, Any]:
    """Return what the page shows about the run and its final weights."""
    model, state, text_BT = subject.model, subject.saved.header.state, sequences_BT[:, :-1]
    task = subject.batches.task
    matching = find_matches(task, text_BT)
    uniform = uniform_scores(text_BT.size(1), subject.period(), *matching[1:])
    checks = check_model(model, subject.prompt_T, torch.float64)
    changes, config = ablate(model, sequences_BT), dataclasses.asdict(subject.config)
    config["data"]["source"] = without_folders(subject.config.data.source)
    jobs = find_jobs(subject, model, job_sequences(subject, subject.options.sequences))
    measured = subject.describe(sequences_BT)
    given = subject.options.source or subject.config.data.source
    if given != "pydocs":
        names = without_folders(given)
        names = names if isinstance(names, str) else ", ".join(names)
        measured = measured.replace(printable(subject.batches.corpus.source), printable(names))
    return {
        "run": {
            "name": subject.run.name,
            "task": task and str(task),
            "step": state.step,
            "val_loss": state.val_loss,
            "unit": subject.tokenizer.unit,
            "parameters": model.num_parameters(),
            "config": config,
            "made": f"{time.strftime('%Y-%m-%d')} · PyTorch {subject.saved.header.machine.torch}",
        },
        "shapes": [[name, list(weight.shape)] for name, weight in model.state_dict().items()],
        "vocab": subject.tokenizer.labels,
        "tokenizer": subject.tokenizer.to_dict(),
        "periods": [*subject.trained_periods[:1], *subject.trained_periods[-1:]],
        "opening": choose_opening(subject, sequences_BT, matching),
        "reference": reference_text(subject).tolist(),
        "baselines": subject.batches.baselines,
        "scores": [
            {
                "key": score.key,
                "source": score.source,
                "formula": score.formula,
                "repeats": score.repeats,
                "uniform": value,
            }
            for score, value in uniform.items()
        ],
        "ablation": {key: flat(change_LH) for key, change_LH in changes.items()},
        "jobs": [
            {
                "line": job.line(),
                "matters": job.matters[0].answers if job.matters else job.matters_for[0],
                "reads": [each.target for each in job.reads],
                "sentence": job.sentence(),
                "tokens": job.tokens,
            }
            for job in jobs
        ],
        "measured": measured,
        "examples": examples_for_page(subject, [*np.ndindex(*changes["zero"].shape)]),
        "checks": [check._asdict() for check in checks],
    }


@torch.no_grad()
def choose_opening(
    subject: Subject, sequences_BT: Tensor, matching: Sequence[Tensor] = ()
) -> dict[str, Any]:
    """Choose the text and the head that the page shows first: the prompt, or a stretch of the
    validation text that begins at a word, after which the head copies a token. For a model of
    repeated strings, choose a word that they could repeat, cut where the next letter can be copied,
    and the head with the highest induction score. In another task, choose the beginning of a
    sequence, up to the last match in it or, if it has none, to the first match, and the head with
    the highest weight on the match.

    A head copies if, by the direct path, it adds to the logit of a token that it attends to. Choose
    the stretch and the head with the largest product of that and the probability of the token.
    """
    model, texts_NT, first = subject.model, subject.prompt_T[None], len(subject.prompt_T) - 1
    T, prompted = min(32, subject.window * 3 // 4 + 1), subject.options.prompt is not None
    if subject.trained_periods and (period := subject.period()):
        score_LH = measure_copying(model, period)[2]["induction"]
        fits = len(WORD) in subject.trained_periods and {*WORD} <= {*subject.tokenizer.labels}
        text_T = subject.tokenizer.encode(2 * WORD)[:22] if fits and not prompted else texts_NT[0]
        return {"text": text_T.tolist(), "head": int(score_LH.argmax())}
    if matching:
        ends = matching[1][0, 0].any(-1).nonzero().flatten().tolist()
        end = max((t for t in ends if t < T), default=ends[0])
        text_T = texts_NT[0] if prompted else matching[0][0, : end + 1]
        weight_LH = score_match(model, *matching)[MATCH.key]
        return {"text": text_T.tolist(), "head": int(weight_LH.argmax())}
    if not prompted:
        first = T // 2
        blank_V = torch.tensor([label.isspace() for label in subject.tokenizer.labels])
        blank_BT, texts_BNT = blank_V[sequences_BT], sequences_BT[:, 1:].unfold(1, T, 1)
        begins_BN = (blank_BT[:, :-1] & ~blank_BT[:, 1:])[:, : texts_BNT.size(1)]
        texts_NT = texts_BNT[begins_BN] if begins_BN.any() else texts_BNT[:, 0]
        texts_NT = micro_batches(model, texts_NT[:: len(texts_NT) // TRIED + 1])[0]
    seen, table = capture(model, texts_NT), model.head or model.token_embedding
    U_VC = (table.weight - table.weight.mean(0)) * model.get_parameter("final_norm.weight")
    p_NTS = seen.logits_BTV.softmax(-1).take_along_dim(texts_NT[:, None], -1)
    values = []
    for layer in seen.layers:
        W_HDC = layer.attn.out.weight.T.unflatten(0, (layer.v_BHSD.size(1), -1))
        copied_NHS = (layer.v_BHSD @ W_HDC * U_VC[texts_NT][:, None]).sum(-1)
        values.append(layer.weights_BHTS * copied_NHS[:, :, None] * p_NTS[:, None])
    value_NHTS = torch.cat(values, 1) / seen.residual[-1].std(-1)[:, None, :, None]
    best = value_NHTS[:, :, first:].amax(-1)
    n, head, t = map(int, torch.unravel_index(best.argmax(), best.shape))
    return {"text": texts_NT[n, : first + t + 1].tolist(), "head": head}


def through_training(subject: Subject) -> Iterator[tuple[int, GPT]]:
    """Yield the step and the weights of each snapshot and of the subject. Leave out a damaged
    snapshot, and say so."""
    files, own = find_snapshots(subject.run), subject.saved.header.state.step
    for step in sorted({*files, own}):
        model = subject.model if step == own else GPT(subject.config.model, subject.V).eval()
        try:
            if step != own:
                load_snapshot(model, files[step])
            yield step, model
        except UserError as error:
            print(printable(f"left out: {error}"), file=sys.stderr)


def choose_snapshots(losses: Sequence[float], count: float, shown: int) -> list[int]:
    """Choose at most `count` snapshots, among them `shown`. Until they are so few, the one across
    which the loss changes least is removed; the first and the last only when no other is left."""
    kept = list(range(len(losses)))
    while len(kept) > count:
        around = zip(kept, kept[1:], kept[2:], strict=False)
        changes = {b: abs(losses[a] - losses[c]) for a, b, c in around if b != shown}
        ends = [i for i in kept if i != shown]
        kept.remove(min(changes, key=changes.__getitem__) if changes else ends[0])
    return kept


def measure_snapshot(
    subject: Subject, sequences_BT: Tensor, model: GPT, eight_bits: bool
) -> tuple[dict[str, Any], bytes]:
    """Measure a model, and pack its weights.

    The logits come from the rounded weights, in float64, as the page's engine should compute them.
    """
    text_BT, reference_BT = sequences_BT[:, :-1], reference_text(subject)[None]
    scores, lens_loss, mean_LHD = measure_text(model, sequences_BT)
    copying, accuracy = None, list[float | None]()
    if period := subject.period():
        first, second, copied = measure_copying(model, period)
        copying, scores = {"period": period, "first": first, "second": second}, scores | copied
    if matching := find_matches(subject.batches.task, text_BT):
        scores |= score_match(model, *matching)
    if subject.batches.task:
        for name in subject.batches.evaluated:
            split = subject.batches.split(name, len(sequences_BT))
            result = evaluate(model, split, subject.batches, Processes())
            accuracy.append(result.accuracy if result else None)
    packed, rounded_weights = pack_weights(model.state_dict(), eight_bits)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        exact_TV = exact(reference_BT)[0]
        exact.load_state_dict(rounded_weights)
        logits_TV = exact(reference_BT)[0]
    T, V = logits_TV.shape
    rows = list(range(T - 1, -1, -max(1, T * V // REFERENCE)))
    measured = {
        "eight_bits": eight_bits,
        "rows": rows,
        "logits": pack(logits_TV[rows]),
        "rounding": (logits_TV - exact_TV).abs().max().item(),
        "scores": {key: flat(score_LH) for key, score_LH in scores.items()},
        "copying": copying,
        "accuracy": accuracy,
        "lens_loss": lens_loss,
        "means": pack(mean_LHD),
    }
    return measured, packed


def reference_text(subject: Subject) -> Tensor:
    """Return the text on which the engine is checked, (T,): the prompt repeated up to the context.

    A model may differ from the engine only at late positions, as with a sliding window.
    """
    return subject.prompt_T.repeat(subject.window)[: subject.window]


def too_small(max_bytes: float, enough: float) -> UserError:
    return UserError(
        f"the model exceeds {max_bytes / 1e6:g} MB; set --max_mb {enough / 1e6 + 0.01:.2f}"
    )


def without_folders(source: Any) -> Any:
    """Return one or several sources of a text without the folders of files, which those who get the
    page need not see."""
    if isinstance(source, list):
        return [without_folders(each) for each in source]
    return source if source.startswith("hub:") else Path(source).name


def flat(x_LH: Tensor) -> list[float]:
    """Flatten the scores, layer by layer, and round them for the page."""
    return [round(float(x), 6) for x in x_LH.flatten()]
