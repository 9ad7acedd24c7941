"""What the report page is given: weights for its engine, a text with PyTorch's logits of it to hold
the engine to, and what needs the corpus or PyTorch: losses, scores, ablation, checks."""

import copy
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from configs.load import to_plain
from lens.checks import check_model
from lens.measure import (
    ablate,
    logit_lens,
    mean_loss,
    mean_outputs,
    measure_copying,
    repeated,
    score_heads,
)  # fmt: skip
from lens.metrics import SCORES
from lens.report.page import pack, page, to_json
from lens.report.weights import pack_weights
from lens.subject import REPEATS, Subject
from model.gpt import GPT
from run.snapshots import find_snapshots, load_snapshot

REFERENCE = 2**16  # logits of PyTorch's, at most, that come with a snapshot


def make_page(subject: Subject, sequences_BT: Tensor, max_bytes: int) -> tuple[str, int]:
    """The page, and how many of the checks failed.

    Args:
        sequences_BT: of block_size + 1 tokens, for scores and losses.
        max_bytes: room for all of it.

    Raises:
        UserError: when there is no room for the weights.
    """
    model, prompt_T = subject.model, subject.prompt_T
    least = 4 / 3 * len(pack_weights(model.state_dict(), True)[0])
    if least > max_bytes:  # said now, and not after minutes
        raise too_small(max_bytes, 1.02 * least + 1e6)
    say_now("checks")
    checks = check_model(model, prompt_T, subject.dtype)
    say_now("ablation")
    ablation = ablate(model, sequences_BT)
    measured = Measured(subject, sequences_BT)
    data: dict[str, Any] = {
        "run": about(subject),
        "shapes": [[name, list(weight.shape)] for name, weight in model.state_dict().items()],
        "vocab": subject.vocab,
        "tokenizer": subject.tokenizer.to_dict(),
        "prompt": prompt_T.tolist(),
        "copies": subject.copies,
        "score_info": score_info(
            "induction" if subject.copies else "previous_token", sequences_BT, measured.repeats_BT
        ),
        "ablation": {"loss": ablation.loss}
        | {key: flat(value) for key, value in ablation.changes.items()},
        "sequences": len(sequences_BT),
        "checks": [asdict(check) for check in checks],
    }
    data["snapshots"], weights = measured.fitting(len(page(data, []).encode()), max_bytes)
    last, ablated = data["snapshots"][-1]["scores"], data["ablation"]
    data["head"] = int(np.argmax(last["induction"] if subject.copies else ablated["zero"]))
    say_now("")
    return page(data, weights), sum(check.verdict == "failed" for check in checks)


def too_small(max_bytes: int, enough: float) -> UserError:
    """What to say where there is no room for the weights."""
    return UserError(
        f"the model does not fit into a page of {max_bytes / 1e6:g} MB, rounded to 8 bits; "
        f"make room with --max_mb {math.ceil(enough / 1e4) / 100} or more"
    )


@dataclass
class Measured:
    """Snapshots of a run, measured."""

    subject: Subject
    sequences_BT: Tensor

    def __post_init__(self) -> None:
        self.period = self.subject.period()
        self.repeats_BT = repeated(self.subject.V, self.period, REPEATS)

    def fitting(self, taken: int, max_bytes: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Snapshots and their weights, the run's own last, where so much of the page is taken.

        The run's own weights are in half precision, and all snapshots too where there is room;
        else the snapshots are in 8 bits; else there are fewer of them, more where the loss moves;
        else the run's own weights are in 8 bits as well.

        Raises:
            UserError: when not even those fit.
        """
        subject, model = self.subject, self.subject.model
        last = subject.header.state.step
        files = {s: file for s, file in find_snapshots(subject.run).items() if s < last}
        along = GPT(subject.config.model, subject.V).eval()
        say_now(f"step {last}")
        own = self.snapshot(last, model, False)
        # What a snapshot adds to the page: what is measured of it, and its weights in base64.
        text = 1.1 * len(to_json(own[0])) + 100
        half = text + 4 / 3 * len(own[1])
        eight = text + 4 / 3 * len(pack_weights(model.state_dict(), True)[0])
        own_in_eight_bits = taken + half > max_bytes
        rest = max_bytes - taken - (eight if own_in_eight_bits else half)
        if rest < 0:
            raise too_small(max_bytes, taken + eight)
        sizes = []
        for file in files.values():
            load_snapshot(along, file)
            packed = [
                pack_weights(along.state_dict(), eight_bits)[0] for eight_bits in (False, True)
            ]
            sizes.append([text + 4 / 3 * len(each) for each in packed])
        in_eight_bits = own_in_eight_bits or sum(size[0] for size in sizes) > rest
        kept = list(range(len(files)))
        if sum(size[in_eight_bits] for size in sizes) > rest:
            losses = [self.loss_at(along, step, file) for step, file in files.items()]
            losses.append(own[0]["lens_loss"][-1])
            while sum(sizes[i][in_eight_bits] for i in kept) > rest:
                kept = thinned(losses, len(kept))[:-1]

        found, steps = [], list(files)
        for i in kept:
            say_now(f"step {steps[i]}")
            load_snapshot(along, files[steps[i]])
            found.append(self.snapshot(steps[i], along, in_eight_bits))
        found.append(self.snapshot(last, model, True) if own_in_eight_bits else own)
        return [told for told, _ in found], [weights for _, weights in found]

    def loss_at(self, model: GPT, step: int, file: Path) -> float:
        say_now(f"loss at step {step}")
        load_snapshot(model, file)
        return mean_loss(model, self.sequences_BT)

    def snapshot(self, step: int, model: GPT, eight_bits: bool) -> tuple[dict[str, Any], bytes]:
        """What is known of the weights at a step, and they themselves, rounded.

        The logits in it are those of the rounded weights, in float64: what the page's engine
        should find.
        """
        sequences_BT, prompt_T = self.sequences_BT, self.subject.prompt_T
        scores = score_heads(model, sequences_BT[:, :-1], self.repeats_BT)
        copying = measure_copying(model, self.period, REPEATS)
        lens_loss = logit_lens(model, sequences_BT)
        packed, rounded_weights = pack_weights(model.state_dict(), eight_bits)
        rounded = copy.deepcopy(model)
        rounded.load_state_dict(rounded_weights)
        nats = mean_loss(rounded, sequences_BT) - lens_loss[-1]
        with torch.no_grad():
            exact_TV = copy.deepcopy(model).double()(prompt_T[None])[0]
            logits_TV = rounded.double()(prompt_T[None])[0]
        T, V = logits_TV.shape
        rows = np.unique(np.linspace(T - 1, 0, max(1, min(T, REFERENCE // V))).round()).astype(int)
        told = {
            "step": step,
            "eight_bits": eight_bits,
            "rows": rows.tolist(),
            "logits": pack(logits_TV[rows].numpy()),
            "rounding": {"logit": (logits_TV - exact_TV).abs().max().item(), "nats": nats},
            "scores": {key: flat(value) for key, value in scores.items()},
            "copying": {"period": self.period, "first": copying.first, "second": copying.second},
            "lens_loss": lens_loss,
            "means": pack(mean_outputs(model, sequences_BT).numpy()),
        }
        return told, packed


def thinned(losses: Sequence[float], count: int) -> list[int]:
    """Which of some moments in training to keep: the first, the last, and in between those where
    the loss moves. One after the other goes the one whose neighbours' losses are closest."""
    kept = list(range(len(losses)))
    while len(kept) > max(count, 1):
        gaps = [
            abs(losses[before] - losses[after])
            for before, after in zip(kept, kept[2:], strict=False)
        ]
        # Of two moments the first goes.
        kept.pop(int(np.argmin(gaps)) + 1 if gaps else 0)
    return kept


def about(subject: Subject) -> dict[str, Any]:
    """The run, for the page's header."""
    config, header = subject.config.model, subject.header
    return {
        "name": subject.run.name,
        "step": header.state.step,
        "val_loss": header.state.val_loss,
        "unit": subject.config.data.unit,
        "parameters": subject.model.num_parameters(),
        "about": (
            f"{config.n_layer} layers x {config.n_embd} wide, "
            f"{config.n_head} heads, context {config.block_size}"
        ),
        "config": to_plain(subject.config),
        "made": time.strftime("%Y-%m-%d"),
        "torch": header.machine.torch,
    }


def score_info(first: str, sequences_BT: Tensor, repeats_BT: Tensor) -> list[dict[str, Any]]:
    """What the page says of each score; the page opens with the one called `first`."""
    found = []
    for score in sorted(SCORES, key=lambda score: score.key != first):
        T = repeats_BT.size(1) if score.repeats else sequences_BT.size(1) - 1
        info = {"key": score.key, "name": score.name, "source": score.source}
        formula = f"{score.formula}; P = {T // 2}" if score.repeats else score.formula
        found.append(info | {"formula": formula, "uniform": score.uniform(T)})
    return found


def flat(x_LH: Tensor) -> list[float]:
    """Layer after layer, rounded for the page."""
    return [round(float(x), 6) for x in x_LH.flatten()]


def say_now(what: str) -> None:
    """What is being computed, on one line that is written over; silent where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}{' ...' * bool(what)}", end="", flush=True, file=sys.stderr)
