"""The command verify: check that the attention shown is the model's, and that no information flows
from later tokens.

Each check compares numbers that must agree. If their relative error exceeds what rounding explains,
the check names the layer, head and position. A check that does not apply gives the reason, and
neither passes nor fails.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from common.progress import progress
from configs.config import STRICT
from lens.capture import Pass, attends_of, capture, hooked
from lens.formula import layer_by_torch, layer_per_head, layer_steps, with_gradients
from lens.measure import spread
from lens.subject import Checkpoint, Prompt, Source, Subject
from lens.tables import Table
from model.attention import MultiHeadAttention, causal_mask
from model.error import relative_error
from model.generate import Window, window_start
from model.gpt import GPT

# The relative error that rounding explains in one layer.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 8e-2}
NAMES = {"H": "head", "T": "position", "S": "from position"}  # dimensions, as messages name them
PROBES = 6  # number of positions at which leaks are tested


@dataclass(frozen=True, config=STRICT)
class Verify:
    """Check that the attention shown is the model's, and that nothing leaks"""

    prompt: Prompt = None
    source: Source = None
    checkpoint: Checkpoint = "best"


class Check(NamedTuple):
    """The result of a check."""

    name: str
    dtype: str

    verdict: str
    """passed, failed, or 'not comparable: ' and the reason."""

    error: float | None
    """The largest relative error up to the first failure; None if not comparable."""

    tolerance: float | None

    where: str
    """Where that error is: layer, head, position."""


class Pair(NamedTuple):
    """Two tensors that must agree."""

    place: str
    """What is compared, such as 'layer 0'."""

    got: Tensor
    want: Tensor

    dims: str
    """A letter for each dimension; those in `NAMES` are named."""

    scale: Tensor | None = None
    """Errors are relative to its largest number; None stands for `want`."""


def verify(word: str | None, options: Verify) -> Iterator[Table]:
    """Yield a row for each check."""
    subject = Subject(word, options, numbers=False)
    in_bfloat16 = subject.saved.header.machine.precision == "bfloat16"
    dtype = torch.bfloat16 if in_bfloat16 else torch.float32
    checks = check_model(subject.model, subject.prompt_T, torch.float64, dtype)
    heading = ("check", "dtype", "verdict", "relative error", "tolerance", "largest at")
    failed = any(check.verdict == "failed" for check in checks)
    yield Table([heading, *checks], words=3, form=".1e", failed=failed)


class Twin(NamedTuple):
    """A model in one type, and its pass over a prompt."""

    model: GPT
    tokens_T: Tensor
    seen: Pass


Pairs = Iterator[Pair | str]  # or the reason why nothing is comparable


def check_model(model: GPT, tokens_T: Tensor, *dtypes: torch.dtype) -> list[Check]:
    """Check everything in these types.

    Args:
        tokens_T: a prompt of at least two tokens.
    """
    checks = []
    for dtype in progress(dtypes, "checking the run"):
        same = copy.deepcopy(model).to(dtype)
        twin = Twin(same, tokens_T, capture(same, tokens_T[None]))
        for check, tolerance in CHECKS.items():
            checks.append(judge(check, twin, tolerance * TOLERANCE[dtype]))
    return checks


def judge(check: Callable[[Twin], Pairs], twin: Twin, tolerance: float) -> Check:
    """Compare pairs, up to the first failure."""
    dtype = str(twin.seen.logits_BTV.dtype).removeprefix("torch.")
    name, largest, where = inspect.getdoc(check) or "", 0.0, ""
    for pair in check(twin):
        if isinstance(pair, str):
            return Check(name, dtype, f"not comparable: {pair}", None, None, "")
        errors = relative_error(pair.got, pair.want, pair.scale)
        if errors.max() > largest:
            largest, index = errors.max().item(), torch.unravel_index(errors.argmax(), errors.shape)
            places = [
                f"{NAMES[d]} {i}" for d, i in zip(pair.dims, index, strict=True) if d in NAMES
            ]
            where = ", ".join([pair.place, *places])
        if largest > tolerance:
            return Check(name, dtype, "failed", largest, tolerance, where)
    return Check(name, dtype, "passed", largest, tolerance, where)


# --- the checks, each named by its docstring -----------------------------------------------------


def each_head(twin: Twin) -> Pairs:
    """each head = formula"""
    # Over a whole context: a layer may differ only at late positions, as with a sliding window.
    seen = capture(twin.model, repeat_prompt(twin, twin.model.config.block_size))
    for i, layer in enumerate(seen.layers):
        z_BHTD = layer_steps(layer.attn, layer.x_BTC)["heads z"].value
        yield Pair(f"layer {i}", layer.z_BHTD, z_BHTD, "BHTD")


def per_head(twin: Twin) -> Pairs:
    """layer = one projection per head"""
    yield from layers(twin, layer_per_head)


def by_torch(twin: Twin) -> Pairs:
    """layer = nn.MultiheadAttention"""
    config, T = twin.model.config, len(twin.tokens_T)
    if config.positions == "rotary" or config.qk_norm:
        yield "rotary or QK-norm"
    else:
        mask_of = partial(causal_mask, T, T)
        yield from layers(
            twin, lambda attn, x: layer_by_torch(attn, x, mask_of(attn.attend.window))
        )


def layers(twin: Twin, way: Callable[[MultiHeadAttention, Tensor], Tensor]) -> Pairs:
    """Compare each layer with another way to compute it on the same input: its output, and the
    gradients of its input and of its weights."""
    for i, layer in enumerate(twin.seen.layers):
        attn, x_BTC = layer.attn, layer.x_BTC
        _, *own = with_gradients(partial(attn, causal=True), attn, x_BTC)
        output_BTC, *other = with_gradients(partial(way, attn), attn, x_BTC)
        yield Pair(f"layer {i}", layer.output_BTC, output_BTC, "BTC")
        # Relative to both: if all keys are the same, W_q's gradient is only rounding error.
        scale = torch.stack([gradient.abs().max() for gradient in other])
        yield Pair(f"layer {i}, gradient of x", own[0], other[0], "BTC", scale)
        yield Pair(f"layer {i}, gradient of weights", own[1], other[1], ".HDC", scale)


def repeat_prompt(twin: Twin, length: int) -> Tensor:
    """Return (1, length): the prompt, repeated up to this length."""
    return twin.tokens_T.repeat(length // len(twin.tokens_T) + 1)[None, :length]


def changes(twin: Twin) -> Pairs:
    """changing a token changes nothing before it"""
    for t in spread(PROBES, len(twin.tokens_T))[1:]:
        other_T = twin.tokens_T.clone()
        other_T[t] = (other_T[t] + 1) % twin.model.token_embedding.num_embeddings
        after, place = capture(twin.model, other_T[None]), f"token {t} changed"
        for i, (a, b) in enumerate(zip(after.layers, twin.seen.layers, strict=True)):
            yield Pair(f"{place}, layer {i}", a.z_BHTD[:, :, :t], b.z_BHTD[:, :, :t], "BHTD")
        got_BTV, want_BTV = after.logits_BTV[:, :t], twin.seen.logits_BTV[:, :t]
        yield Pair(f"{place}, logits", got_BTV, want_BTV, "BTV")


def gradients(twin: Twin) -> Pairs:
    """no gradient from later tokens"""
    embedded: list[Tensor] = []

    def keep(module: nn.Module, args: object, output_BTC: Tensor) -> Tensor:
        embedded.append(output_BTC.detach().requires_grad_())
        return embedded[0]

    with hooked([twin.model.token_embedding], keep):
        logits_TV = twin.model(twin.tokens_T[None])[0]
    onto_V = torch.randn(logits_TV.size(-1), generator=torch.Generator().manual_seed(0))
    for t in spread(PROBES, len(logits_TV))[:-1]:
        loss = logits_TV[t] @ onto_V.to(logits_TV)
        (got_BSC,) = torch.autograd.grad(loss, embedded, retain_graph=True)
        want_BSC = got_BSC.clone()
        want_BSC[:, t + 1 :] = 0
        yield Pair(f"logits, position {t}", got_BSC, want_BSC, "BSC")


def sums(twin: Twin) -> Pairs:
    """heads and bias sum to the layer"""
    for i, layer in enumerate(twin.seen.layers):
        out = layer.attn.out
        W_CHD = out.weight.unflatten(1, (layer.attn.n_head, -1))
        heads_BHTC = torch.einsum("bhtd,chd->bhtc", layer.z_BHTD, W_CHD)
        total_BTC = heads_BHTC.sum(1) + out(torch.zeros_like(layer.x_BTC))  # the bias, if any
        yield Pair(f"layer {i}", layer.output_BTC, total_BTC, "BTC")


def last_layer(twin: Twin) -> Pairs:
    """last layer of the logit lens = logits"""
    logits_BTV = twin.model.unembed(twin.seen.residual[-1])
    yield Pair("logits", logits_BTV, twin.seen.logits_BTV, "BTV")


def decoding(twin: Twin) -> Pairs:
    """decoding with the cache = full pass"""
    # Decode token by token, and compare with a full pass over the window of `window_start`.
    model, block_size, window = twin.model, twin.model.config.block_size, Window(twin.model)
    length = block_size + block_size // 2 + 2  # the window moves twice
    text_BT = repeat_prompt(twin, length)
    full_pass = cache(lambda start: capture(model, text_BT[:, start : start + block_size]))
    z: list[Tensor] = []  # of each layer and position
    with hooked(attends_of(model), lambda attend, args, z_BHTD: z.append(z_BHTD[0, :, -1])):
        logits = [window.read(text_BT[:, [t]])[0] for t in range(length)]
    for t in range(length):
        start = window_start(t, block_size)
        seen: Pass = full_pass(start)
        for i, layer in enumerate(seen.layers):
            got_HD, want_HD = z[t * len(seen.layers) + i], layer.z_BHTD[0, :, t - start]
            yield Pair(f"layer {i}, position {t}", got_HD, want_HD, "HD", layer.z_BHTD)
        want_V = seen.logits_BTV[0, t - start]
        yield Pair(f"logits, position {t}", logits[t], want_V, "V", seen.logits_BTV)


# Tolerances, as multiples of `TOLERANCE`; 0 requires bitwise identical numbers.
CHECKS = {
    each_head: 1,
    per_head: 1,
    by_torch: 1,
    changes: 0,
    gradients: 0,
    sums: 1,
    last_layer: 1,
    decoding: 4,
}
