"""The numbers that the report page shows; the page itself knows no model.

Attention weights are kept as the lower triangle of each map, a byte each, coded as the rounded
255 * sqrt(weight), so that small weights stay apart; queries and keys of the last step in 16 bits,
from which the page computes the scores.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lens.capture import Pass, capture
from lens.checks import Proof
from lens.heads import Ablation, Copying, mean_loss, score_heads
from lens.metrics import SCORES
from lens.report.page import pack
from model.gpt import GPT

CANDIDATES = 5
LENS_CANDIDATES = 3


@dataclass(frozen=True)
class Texts:
    """What the model is shown."""

    prompt_T: Tensor
    """The text on the page, at most a window."""

    windows_BT: Tensor
    """Validation windows of block_size + 1, for scores and losses."""

    repeats_BT: Tensor
    """From `lens.heads.repeated`."""


def report_data(
    about: dict[str, Any],
    vocab: list[str],
    texts: Texts,
    models: Iterable[tuple[int, GPT]],
    ablation: Ablation,
    copying: Copying,
    lens_losses: list[float],
    proofs: list[Proof],
    curve: dict[str, list[float]],
    first_score: str = "entropy",
) -> dict[str, Any]:
    """All that `lens.report.page.page` needs.

    Args:
        about: the run, for the header.
        vocab: the text of each token.
        models: step and model, in order; the last is the one that all else is about. It may be the
            same model with other weights each time.
        lens_losses: of the embedding and each layer on validation windows.
        curve: `step` and `val_loss` over training.
        first_score: key of the score that the page opens with.
    """
    prompt_T = texts.prompt_T
    snapshots = []
    for step, model in models:
        seen = capture(model, prompt_T[None])
        snapshots.append(snapshot(step, model, seen, texts))
    H, D = model.config.n_head, model.config.head_width
    q, q_scale = sixteen_bits(torch.cat([layer.q_BHTD for layer in seen.layers]))
    k, k_scale = sixteen_bits(torch.cat([layer.k_BHSD for layer in seen.layers]))
    T_windows, T_repeats = texts.windows_BT.size(1) - 1, texts.repeats_BT.size(1)
    return {
        "run": about,
        "L": model.config.n_layer,
        "H": H,
        "T": len(prompt_T),
        "D": D,
        "tokens": [vocab[token] for token in prompt_T.tolist()],
        "vocab": vocab,
        "snapshots": snapshots,
        "score_info": [
            {
                "key": score.key,
                "name": score.name,
                "formula": score.formula + (f"; P = {T_repeats // 2}" if score.repeats else ""),
                "source": score.source,
                "uniform": score.uniform(T_repeats if score.repeats else T_windows),
            }
            for score in sorted(SCORES, key=lambda score: score.key != first_score)
        ],
        "ablation": {
            "zero": flat(ablation.zero_LH),
            "zero_se": flat(ablation.zero_error_LH),
            "mean": flat(ablation.mean_LH),
            "mean_se": flat(ablation.mean_error_LH),
            "loss": ablation.loss,
            "tokens": ablation.tokens,
        },
        "windows": len(texts.windows_BT),
        "copying": {"period": copying.period, "first": copying.first, "second": copying.second},
        "q": q,
        "k": k,
        "q_scale": q_scale,
        "k_scale": k_scale,
        "lens": lens_of(model, seen, prompt_T, lens_losses),
        "proofs": [asdict(proof) for proof in proofs],
        "curve": curve,
    }


def snapshot(step: int, model: GPT, seen: Pass, texts: Texts) -> dict[str, Any]:
    """What the slider changes."""
    prompt_T = texts.prompt_T
    T = len(prompt_T)
    log_p_TV = seen.logits_BTV[0].float().log_softmax(-1)
    surprisal_T = torch.full((T,), math.nan)
    surprisal_T[1:] = -log_p_TV[:-1].gather(1, prompt_T[1:, None])[:, 0]
    p, ids = likeliest(log_p_TV, CANDIDATES)
    rows, columns = np.tril_indices(T)
    coded = torch.cat(  # a layer at a time, so that the rest are bytes already
        [
            (255 * layer.weights_BHTS[0][:, rows, columns].sqrt()).round().to(torch.uint8)
            for layer in seen.layers
        ]
    )
    scores = score_heads(model, texts.windows_BT[:, :-1], texts.repeats_BT)
    return {
        "step": step,
        "val_loss": mean_loss(model, texts.windows_BT),
        "prompt_loss": surprisal_T[1:].mean().item(),
        "attention": pack(coded.numpy()),
        "surprisal": pack(surprisal_T.numpy()),
        "candidates": pack(ids),
        "candidate_p": pack(p),
        "scores": {key: flat(value) for key, value in scores.items()},
    }


def lens_of(model: GPT, seen: Pass, prompt_T: Tensor, losses: list[float]) -> dict[str, Any]:
    """The logit lens on the prompt."""
    ids, p, p_true = [], [], []
    for x_BTC in seen.stream:
        with torch.no_grad():
            log_p_TV = model.unembed(x_BTC)[0].float().log_softmax(-1)
        top_p, top_ids = likeliest(log_p_TV, LENS_CANDIDATES)
        ids.append(top_ids)
        p.append(top_p)
        true_T = torch.full((len(prompt_T),), math.nan)
        true_T[:-1] = log_p_TV[:-1].gather(1, prompt_T[1:, None])[:, 0].exp()
        p_true.append(true_T.numpy())
    return {
        "names": ["embedding", *(f"after layer {i}" for i in range(model.config.n_layer))],
        "loss": losses,
        "ids": pack(np.stack(ids)),
        "p": pack(np.stack(p)),
        "p_true": pack(np.stack(p_true)),
    }


def likeliest(log_p_TV: Tensor, count: int) -> tuple[Any, Any]:
    """Probabilities (T, count) and ids of the likeliest tokens; with fewer tokens than that, the
    last is repeated with probability 0."""
    V = log_p_TV.size(-1)
    p, ids = log_p_TV.exp().topk(min(count, V), dim=-1)
    missing = (0, count - p.size(-1))
    return F.pad(p, missing).numpy(), F.pad(ids, missing).numpy().astype(np.uint16)


def sixteen_bits(x_LHTD_joined: Tensor) -> tuple[str, list[float]]:
    """(L, H, T, D) as whole numbers, and for each head the number that one of them stands for."""
    x = x_LHTD_joined.float().flatten(0, 1)
    scale = x.abs().amax((1, 2)).clamp(min=1e-12) / 32767
    whole = (x / scale[:, None, None]).round().to(torch.int16)
    return pack(whole.numpy()), [float(s) for s in scale]


def flat(x_LH: Tensor) -> list[float]:
    """Layer after layer, rounded for the page."""
    return [round(float(x), 6) for x in x_LH.flatten()]
