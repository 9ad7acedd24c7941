"""The numbers that the report page shows; the page itself knows no model.

Attention weights are kept as the lower triangle of each map, a byte each, coded as the rounded
255 * sqrt(weight), so that small weights stay apart; queries and keys of the last step in 16 bits,
from which the page computes the scores.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from configs.load import to_plain
from lens.capture import Pass, capture
from lens.checks import check_model
from lens.measure import ablate, logit_lens, mean_loss, measure_copying, repeated, score_heads
from lens.metrics import SCORES
from lens.report.page import pack
from lens.subject import REPEATS, Subject
from model.gpt import GPT
from run.metrics import read_metrics
from run.snapshots import find_snapshots, load_snapshot

CANDIDATES = 5
LENS_CANDIDATES = 3


def report_data(subject: Subject, sequences_BT: Tensor) -> dict[str, Any]:
    """All that `lens.report.page.page` needs.

    Args:
        sequences_BT: of block_size + 1 tokens, for scores and losses.
    """
    model, prompt_T = subject.model, subject.prompt_T
    repeats_BT = repeated(subject.V, subject.period(), REPEATS)
    say_now("checks")
    checks = check_model(model, prompt_T, subject.dtype)
    say_now("ablation")
    ablation = ablate(model, sequences_BT)
    copying = measure_copying(model, subject.period(), REPEATS)
    seen = capture(model, prompt_T[None])
    q, q_scale = sixteen_bits(torch.cat([layer.q_BHTD for layer in seen.layers]))
    k, k_scale = sixteen_bits(torch.cat([layer.k_BHSD for layer in seen.layers]))
    data = {
        "run": about(subject),
        "L": model.config.n_layer,
        "H": model.config.n_head,
        "T": len(prompt_T),
        "D": model.config.head_width,
        "tokens": [subject.vocab[token] for token in prompt_T.tolist()],
        "vocab": subject.vocab,
        "snapshots": [
            snapshot(step, along, prompt_T, sequences_BT, repeats_BT)
            for step, along in models_of(subject)
        ],
        "score_info": score_info(
            "induction" if subject.copies else "entropy", sequences_BT, repeats_BT
        ),
        "ablation": {"loss": ablation.loss, "tokens": ablation.tokens}
        | {key: flat(value) for key, value in ablation.changes.items()},
        "sequences": len(sequences_BT),
        "copying": {"period": copying.period, "first": copying.first, "second": copying.second},
        "q": q,
        "k": k,
        "q_scale": q_scale,
        "k_scale": k_scale,
        "lens": lens_of(model, seen, prompt_T) | {"loss": logit_lens(model, sequences_BT)},
        "checks": [asdict(check) for check in checks],
        "curve": loss_curve(subject.run),
    }
    say_now("")
    return data


def about(subject: Subject) -> dict[str, Any]:
    """The run, for the page's header."""
    config, header = subject.config.model, subject.header
    return {
        "name": subject.run.name,
        "step": header.state.step,
        "val_loss": header.state.val_loss,
        "unit": subject.config.data.tokenizer,
        "parameters": subject.model.num_parameters(),
        "about": (
            f"{config.n_layer} layers x {config.n_embd} wide, "
            f"{config.n_head} heads, context {config.block_size}"
        ),
        "config": to_plain(subject.config),
        "made": time.strftime("%Y-%m-%d"),
        "torch": header.machine.torch,
    }


def models_of(subject: Subject) -> Iterator[tuple[int, GPT]]:
    """Step and model, in order: the snapshots (one model, with other weights each time), and the
    run's own weights last."""
    along = GPT(subject.config.model, subject.V).eval()
    for step, file in find_snapshots(subject.run).items():
        if step < subject.header.state.step:
            say_now(f"step {step}")
            load_snapshot(along, file)
            yield step, along
    yield subject.header.state.step, subject.model


def snapshot(
    step: int, model: GPT, prompt_T: Tensor, sequences_BT: Tensor, repeats_BT: Tensor
) -> dict[str, Any]:
    """What the slider changes."""
    seen = capture(model, prompt_T[None])
    log_p_TV = seen.logits_BTV[0].float().log_softmax(-1)
    surprisal_T = -log_p_of_next(log_p_TV, prompt_T).roll(1)
    p, ids = likeliest(log_p_TV, CANDIDATES)
    rows, columns = np.tril_indices(len(prompt_T))
    maps = [layer.weights_BHTS[0][:, rows, columns] for layer in seen.layers]
    coded = torch.cat([(255 * cells.sqrt()).round().to(torch.uint8) for cells in maps])
    scores = score_heads(model, sequences_BT[:, :-1], repeats_BT)
    return {
        "step": step,
        "val_loss": mean_loss(model, sequences_BT),
        "prompt_loss": surprisal_T[1:].mean().item(),
        "attention": pack(coded.numpy()),
        "surprisal": pack(surprisal_T.numpy()),
        "candidates": pack(ids),
        "candidate_p": pack(p),
        "scores": {key: flat(value) for key, value in scores.items()},
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


@torch.no_grad()
def lens_of(model: GPT, seen: Pass, prompt_T: Tensor) -> dict[str, Any]:
    """The logit lens on the prompt."""
    ids, p, p_true = [], [], []
    for x_BTC in seen.residual:
        log_p_TV = model.unembed(x_BTC)[0].float().log_softmax(-1)
        top_p, top_ids = likeliest(log_p_TV, LENS_CANDIDATES)
        ids.append(top_ids)
        p.append(top_p)
        p_true.append(log_p_of_next(log_p_TV, prompt_T).exp().numpy())
    return {
        "names": ["embedding", *(f"after layer {i}" for i in range(model.config.n_layer))],
        "ids": pack(np.stack(ids)),
        "p": pack(np.stack(p)),
        "p_true": pack(np.stack(p_true)),
    }


def log_p_of_next(log_p_TV: Tensor, tokens_T: Tensor) -> Tensor:
    """(T,): log probability, at each position, of the token that comes next; NaN at the last."""
    log_p_T = log_p_TV[:-1].gather(1, tokens_T[1:, None])[:, 0]
    return F.pad(log_p_T, (0, 1), value=torch.nan)


def likeliest(log_p_TV: Tensor, count: int) -> tuple[Any, Any]:
    """Probabilities (T, count) and ids of the likeliest tokens; with fewer tokens than that, the
    last is repeated with probability 0."""
    p, ids = log_p_TV.exp().topk(min(count, log_p_TV.size(-1)), dim=-1)
    missing = (0, count - p.size(-1))
    return F.pad(p, missing).numpy(), F.pad(ids, missing).numpy().astype(np.uint16)


def sixteen_bits(x_LHTD: Tensor) -> tuple[str, list[float]]:
    """(L, H, T, D) as whole numbers, and for each head the number that one of them stands for."""
    x = x_LHTD.float().flatten(0, 1)
    scale = x.abs().amax((1, 2)).clamp(min=1e-12) / 32767
    whole = (x / scale[:, None, None]).round().to(torch.int16)
    return pack(whole.numpy()), scale.tolist()


def flat(x_LH: Tensor) -> list[float]:
    """Layer after layer, rounded for the page."""
    return [round(float(x), 6) for x in x_LH.flatten()]


def loss_curve(run: Path) -> dict[str, list[float]]:
    """Validation loss over training, as far as metrics.jsonl has it."""
    evaluated = [line for line in read_metrics(run) if "val_loss" in line]
    return {key: [line[key] for line in evaluated] for key in ("step", "val_loss")}


def say_now(what: str) -> None:
    """What is being computed, on one line that is written over; silent where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}{' ...' * bool(what)}", end="", flush=True, file=sys.stderr)
