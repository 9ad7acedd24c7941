"""Checks on a model's own weights: that what is shown is what was trained, and that no information
flows from later tokens.

Each compares numbers that must agree. Where their relative error exceeds what rounding explains, it
names layer, head and position. A check that does not apply says why; it neither passes nor fails.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from lens.capture import Pass, attends_of, blocks_of, capture, hooked
from lens.walk import walk
from model.attention import MultiHeadAttention, attention, causal_mask
from model.generate import Decoder, window_start
from model.gpt import GPT, next_token_loss

# The relative error that rounding explains.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 8e-2, torch.float16: 1e-2}
PROBES = 6  # positions that are changed, or looked back from, when leaks are looked for


@dataclass(frozen=True)
class Check:
    """What a check found."""

    name: str
    dtype: str

    error: float | None
    """The largest relative error up to the first that fails; None where not comparable."""

    tolerance: float | None

    where: str
    """Where that error is."""

    verdict: str
    """passed, failed, or 'not comparable: ' and why."""


@dataclass(frozen=True)
class Pair:
    """Two tensors that must agree."""

    place: str
    """What is compared: 'layer 0', or the name of a weight."""

    got: Tensor
    want: Tensor

    dims: str
    """A letter for each dimension: H head, T position, S position looked at; others go unnamed."""

    scale: Tensor | None = None
    """What errors are relative to, if not the largest number of `want`."""


def check_model(model: GPT, tokens_T: Tensor, own: torch.dtype) -> list[Check]:
    """Every check, in float64 and in the type that the run computed in.

    Args:
        tokens_T: a prompt of two tokens at least.
    """
    found = []
    for dtype in (torch.float64, own):
        twin, tolerance = copy.deepcopy(model).to(dtype).eval(), TOLERANCE[dtype]
        seen = capture(twin, tokens_T[None])
        for check in (
            *check_layers(twin, seen, tolerance),
            *check_kernels(twin, tokens_T, tolerance),
            *check_future(twin, tokens_T, seen),
            *check_sums(twin, seen, tolerance),
            *check_decoding(twin, tokens_T, tolerance),
        ):
            found.append(replace(check, dtype=str(dtype).removeprefix("torch.")))
    return found


def judge(name: str, pairs: Iterable[Pair], tolerance: float) -> Check:
    """Compare pairs, up to the first that fails."""
    largest, where = 0.0, ""
    for pair in pairs:
        error = relative_error(pair.got, pair.want, pair.scale)
        if error.max() > largest:
            largest, where = error.max().item(), place_of(pair, error)
        if largest > tolerance:
            return Check(name, "", largest, tolerance, where, "failed")
    return Check(name, "", largest, tolerance, where, "passed")


def relative_error(got: Tensor, want: Tensor, scale: Tensor | None = None) -> Tensor:
    """|got - want|, elementwise, over the largest |want|, or over the largest of `scale`; infinite
    where numbers are not finite."""
    largest = (want if scale is None else scale).double().abs().max()
    error = (got.double() - want.double()).abs() / largest.clamp(min=1e-300)
    return error.nan_to_num(nan=torch.inf, posinf=torch.inf)


def place_of(pair: Pair, error: Tensor) -> str:
    """Layer, head and position of the largest error."""
    index = torch.unravel_index(error.argmax(), error.shape)
    names = {"H": "head", "T": "position", "S": "from position"}
    at = [f"{names[d]} {int(i)}" for d, i in zip(pair.dims, index, strict=True) if d in names]
    return ", ".join([pair.place, *at])


# --- 1: kernels, formula, one projection per head, torch.nn.MultiheadAttention -----------------


def head_by_head(attn: MultiHeadAttention, x_BTC: Tensor) -> Tensor:
    """The layer as the paper has it: W_q, W_k and W_v of its own for each head, the heads
    concatenated, W_O. Head h has rows h * D to (h + 1) * D of the shared projections.

    Written without `model.attention.attention`, so that it can catch a mistake there.
    """
    _, T, C = x_BTC.shape
    D = C // attn.n_head
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    heads = []
    for h in range(attn.n_head):
        rows = slice(h * D, (h + 1) * D)
        q_BTD, k_BTD, v_BTD = (
            F.linear(x_BTC, layer.weight[rows], None if layer.bias is None else layer.bias[rows])
            for layer in (attn.query, attn.key, attn.value)
        )
        q_BTD, k_BTD = attn.q_norm(q_BTD), attn.k_norm(k_BTD)
        if attn.rotary is not None:  # it rotates by position alone, the same in every head
            q_BTD, k_BTD = attn.rotary(q_BTD, 0), attn.rotary(k_BTD, 0)
        scores_BTS = torch.einsum("btd,bsd->bts", q_BTD, k_BTD) * D**-0.5
        weights_BTS = torch.where(later, -torch.inf, scores_BTS).softmax(dim=-1)
        heads.append(torch.einsum("bts,bsd->btd", weights_BTS, v_BTD))
    return F.linear(torch.cat(heads, dim=-1), attn.out.weight, attn.out.bias)


def by_formula(attn: MultiHeadAttention, x_BTC: Tensor) -> Tensor:
    """The layer as the formula has it."""
    return walk(attn, x_BTC)["output"].value


def by_torch(attn: MultiHeadAttention, x_BTC: Tensor, mask: Tensor | None = None) -> Tensor:
    """`torch.nn.MultiheadAttention` with the layer's weights: its three projections are one matrix,
    and its mask has the other polarity. No rotary positions, no QK-norm."""
    C, has_bias = attn.out.out_features, attn.out.bias is not None
    projections = (attn.query, attn.key, attn.value)
    weights = {
        "in_proj_weight": torch.cat([layer.weight for layer in projections]),
        "out_proj.weight": attn.out.weight,
    }
    if has_bias:
        weights["in_proj_bias"] = torch.cat([layer.bias for layer in projections])
        weights["out_proj.bias"] = attn.out.bias
    module = nn.MultiheadAttention(C, attn.n_head, bias=has_bias, batch_first=True)
    hidden = None if mask is None else ~mask
    settings = {"attn_mask": hidden, "need_weights": False}
    output: Tensor = functional_call(module, weights, (x_BTC, x_BTC, x_BTC), settings)[0]
    return output


def not_classical(attn: MultiHeadAttention) -> str:
    """Why `torch.nn.MultiheadAttention` has nothing to compare with; empty where it has."""
    reasons = {
        "rotary": attn.rotary is not None,
        "QK-norm": not isinstance(attn.q_norm, nn.Identity),
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def weights_of(attn: MultiHeadAttention) -> list[Tensor]:
    """W_q, W_k, W_v, W_O."""
    return [layer.weight for layer in (attn.query, attn.key, attn.value, attn.out)]


def with_gradients(
    compute: Callable[[Tensor], Tensor], x_BTC: Tensor, weights: Iterable[Tensor] = ()
) -> tuple[Tensor, list[Tensor]]:
    """The output for x, and the gradient of a fixed random projection of it, for x and weights."""
    x_BTC = x_BTC.detach().requires_grad_()
    output = compute(x_BTC)
    generator = torch.Generator().manual_seed(0)
    onto = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    loss = (output * onto.to(output)).sum()
    return output.detach(), list(torch.autograd.grad(loss, [x_BTC, *weights]))


def check_layers(model: GPT, seen: Pass, tolerance: float) -> Iterator[Check]:
    """Each layer, on what it really read, against three other ways to compute it."""
    T, H = seen.logits_BTV.size(1), model.config.n_head
    mask = causal_mask(T, T)
    ways: dict[str, Callable[[MultiHeadAttention, Tensor], Tensor]] = {
        "formula": by_formula,
        "one projection per head": head_by_head,
        "nn.MultiheadAttention": partial(by_torch, mask=mask),
    }
    attns = [block.attn for block in blocks_of(model)]
    kernels, own = [], []
    for i, (attn, layer) in enumerate(zip(attns, seen.layers, strict=True)):
        formula = attention(layer.q_BHTD, layer.k_BHSD, layer.v_BHSD, mask)[0]
        kernels.append(Pair(f"layer {i}", layer.z_BHTD, formula, "BHTD"))
        own.append(with_gradients(partial(attn, causal=True), layer.x_BTC, weights_of(attn)))
    yield judge("kernel of the run = formula, each head", kernels, tolerance)
    for name, way in ways.items():
        if name == "nn.MultiheadAttention" and (why := not_classical(attns[0])):
            yield Check(f"layer = {name}", "", None, None, "", f"not comparable: {why}")
            continue
        outputs, gradients = [], []
        for i, (attn, layer) in enumerate(zip(attns, seen.layers, strict=True)):
            place, (output, got) = f"layer {i}", own[i]
            formula, want = with_gradients(partial(way, attn), layer.x_BTC, weights_of(attn))
            outputs += [Pair(place, a, formula, "BTC") for a in (output, layer.output_BTC)]
            # Relative to all of them: where all keys are the same, W_q's gradient is rounding.
            scale = torch.stack([gradient.abs().max() for gradient in want])
            gradients.append(Pair(f"{place}, x", got[0], want[0], "BTC", scale))
            for what, a, b in zip(("W_q", "W_k", "W_v", "W_O"), got[1:], want[1:], strict=True):
                # Heads are rows of W_q, W_k and W_v, and columns of W_O.
                dim, dims = (1, "CHD") if what == "W_O" else (0, "HDC")
                a, b = a.unflatten(dim, (H, -1)), b.unflatten(dim, (H, -1))
                gradients.append(Pair(f"{place}, {what}", a, b, dims, scale))
        yield judge(f"layer = {name}", outputs, tolerance)
        yield judge(f"layer = {name}, gradient", gradients, tolerance)


@contextmanager
def kernel(model: GPT, name: str) -> Iterator[None]:
    """Inside the `with` block all layers compute with this kernel."""
    before = [(attend, attend.kernel) for attend in attends_of(model)]
    for attend, _ in before:
        attend.kernel = name
    try:
        yield
    finally:
        for attend, old in before:
            attend.kernel = old


def check_kernels(model: GPT, tokens_T: Tensor, tolerance: float) -> Iterator[Check]:
    """Fused and explicit kernel give the model the same logits and the same gradients."""
    found = []
    names, parameters = zip(*model.named_parameters(), strict=True)
    for which in ("fused", "explicit"):
        with kernel(model, which):
            logits = model(tokens_T[None, :-1])
            loss = next_token_loss(logits, tokens_T[None, 1:])
            found.append((logits.detach(), torch.autograd.grad(loss, parameters)))
    (fused, fused_gradients), (explicit, explicit_gradients) = found
    pair = Pair("logits", fused, explicit, "BTV")
    yield judge("model: fused = explicit kernel", [pair], tolerance)
    # Relative to all of them: a key's bias moves no softmax, and its gradient is rounding alone.
    scale = torch.stack([gradient.abs().max() for gradient in explicit_gradients])
    pairs = [
        Pair(name, a, b, "." * a.dim(), scale)
        for name, a, b in zip(names, fused_gradients, explicit_gradients, strict=True)
    ]
    # Errors of the layers add up on the way back, as those of independent numbers do.
    tolerance *= math.sqrt(1 + model.config.n_layer)
    yield judge("model: fused = explicit kernel, gradient", pairs, tolerance)


# --- 2: decoding with the cache ------------------------------------------------------------------


@torch.no_grad()
def check_decoding(model: GPT, tokens_T: Tensor, tolerance: float) -> Iterator[Check]:
    """Token by token with a cache, at every position of a text of one and a half windows and more,
    against a full pass over each window that `window_start` gives."""
    block_size, L = model.config.block_size, model.config.n_layer
    length = block_size + block_size // 2 + 2  # the window moves twice
    text_BT = tokens_T.repeat(length // len(tokens_T) + 1)[None, :length]
    decoder, last_z = Decoder(model), []
    with hooked(attends_of(model), lambda module, args, z_BHTD: last_z.append(z_BHTD[0, :, -1])):
        cached_TV = torch.cat([decoder.read(text_BT[:, [t]]) for t in range(length)])
    cached_TLHD = torch.stack(last_z).unflatten(0, (length, L))
    full_TLHD, full_TV = [], []
    for start, window in itertools.groupby(range(length), lambda t: window_start(t, block_size)):
        positions = list(window)
        seen = capture(model, text_BT[:, start : positions[-1] + 1])
        rows = slice(positions[0] - start, None)
        full_TLHD.append(
            torch.stack([z.z_BHTD[0, :, rows] for z in seen.layers]).permute(2, 0, 1, 3)
        )
        full_TV.append(seen.logits_BTV[0, rows])
    want_TLHD, want_TV = torch.cat(full_TLHD), torch.cat(full_TV)
    pairs = [Pair(f"layer {i}", cached_TLHD[:, i], want_TLHD[:, i], "THD") for i in range(L)]
    pairs.append(Pair("logits", cached_TV, want_TV, "TV"))
    tolerance *= math.sqrt(1 + L)
    yield judge("decoding with the cache = full pass", pairs, tolerance)
    edges = sorted({0, block_size - 1, block_size, block_size + 1, length - 1} & set(range(length)))
    pairs = [
        Pair(
            f"position {t}",
            Decoder(model, use_cache=False).read(text_BT[:, : t + 1])[0],
            want_TV[t],
            "V",
        )
        for t in edges
    ]
    yield judge("decoding without the cache = full pass", pairs, tolerance)


# --- 3: no information flows from later tokens ---------------------------------------------------


def spread(first: int, last: int) -> list[int]:
    """At most `PROBES` positions from first to last, both included."""
    return sorted({int(i) for i in torch.linspace(first, last, PROBES).round()})


def check_future(model: GPT, tokens_T: Tensor, seen: Pass) -> Iterator[Check]:
    """A later token changes nothing before it, to the last bit, and no gradient comes from it.
    Where nothing changes at and after it either, the check says so and fails."""
    name = "changing a token changes nothing before it"
    if model.token_embedding.num_embeddings == 1:
        yield Check(name, "", None, None, "", "not comparable: a single token")
    else:
        yield check_changes(name, model, tokens_T, seen)
    yield check_gradients("no gradient from later tokens", model, seen)


def check_changes(name: str, model: GPT, tokens_T: Tensor, seen: Pass) -> Check:
    """Change some tokens, one at a time."""
    layers: list[list[Pair]] = [[] for _ in seen.layers]
    logits = []
    for t in spread(1, len(tokens_T) - 1):
        other_T = tokens_T.clone()
        other_T[t] = (other_T[t] + 1) % model.token_embedding.num_embeddings
        after = capture(model, other_T[None])
        place = f"token {t} changed"
        for i, (a, b) in enumerate(zip(after.layers, seen.layers, strict=True)):
            layers[i].append(
                Pair(f"{place} layer {i}", a.z_BHTD[:, :, :t], b.z_BHTD[:, :, :t], "BHTD")
            )
        a_TV, b_TV = after.logits_BTV[0], seen.logits_BTV[0]
        logits.append(Pair(f"{place} logits", a_TV[:t], b_TV[:t], "TV"))
        if torch.equal(a_TV[t:], b_TV[t:]):
            return Check(name, "", None, 0.0, f"token {t} changes no logit", "failed")
    return judge(name, [*itertools.chain(*layers), *logits], 0.0)


def check_gradients(name: str, model: GPT, seen: Pass) -> Check:
    """d logit_i / d embedding_j is exactly 0 for j > i, and d z_i / d x_j in each head."""
    generator = torch.Generator().manual_seed(0)
    pairs = []

    def look_back(output_TX: Tensor, x_BTC: Tensor, place: str) -> bool:
        """Gradients of a random projection of each probed output; whether its own place has any."""
        alive = True
        for i in spread(0, len(output_TX) - 2):
            onto = torch.randn(output_TX.size(-1), generator=generator, dtype=torch.float64)
            loss = (output_TX[i] * onto.to(output_TX)).sum()
            (gradient_BTC,) = torch.autograd.grad(loss, x_BTC, retain_graph=True)
            allowed_BTC = gradient_BTC.clone()
            allowed_BTC[0, i + 1 :] = 0
            pairs.append(Pair(f"{place}, position {i}", gradient_BTC, allowed_BTC, "BSC"))
            alive &= bool(gradient_BTC[0, i].any())
        return alive

    inputs, outputs = [layer.x_BTC.detach().requires_grad_() for layer in seen.layers], []
    with hooked(attends_of(model), lambda module, args, z_BHTD: outputs.append(z_BHTD)):
        for block, x_BTC in zip(blocks_of(model), inputs, strict=True):
            block.attn(x_BTC, causal=True)
    for i, (x_BTC, z_BHTD) in enumerate(zip(inputs, outputs, strict=True)):
        for head, z_TD in enumerate(z_BHTD[0]):
            look_back(z_TD, x_BTC, f"layer {i}, head {head}")
    embedded_BTC = x_BTC = seen.residual[0].detach().requires_grad_()
    for block in blocks_of(model):
        x_BTC = block(x_BTC)
    if not look_back(model.unembed(x_BTC)[0], embedded_BTC, "logits"):
        return Check(name, "", None, 0.0, "a logit has no gradient at all", "failed")
    return judge(name, pairs, 0.0)


# --- 4: sums -------------------------------------------------------------------------------------


@torch.no_grad()
def check_sums(model: GPT, seen: Pass, tolerance: float) -> Iterator[Check]:
    """The last layer of the logit lens is the model's logits; what the heads add, each through its
    columns of W_O, and the bias sum to what the layer adds."""
    pair = Pair("logits", model.unembed(seen.residual[-1]), seen.logits_BTV, "BTV")
    yield judge("last layer of the logit lens = logits", [pair], tolerance)
    pairs = []
    for i, (block, layer) in enumerate(zip(blocks_of(model), seen.layers, strict=True)):
        out, place = block.attn.out, f"layer {i}"
        columns = out.weight.split(model.config.head_width, dim=1)
        added_HTC = torch.stack(
            [z_TD @ W_CD.T for z_TD, W_CD in zip(layer.z_BHTD[0], columns, strict=True)]
        )
        total_TC = added_HTC.sum(0) if out.bias is None else added_HTC.sum(0) + out.bias
        if relative_error(layer.output_BTC[0], total_TC).max() > tolerance:
            place += f", head {missing_head(layer.output_BTC[0] - total_TC, added_HTC)}"
        pairs.append(Pair(place, layer.output_BTC[0], total_TC, "TC"))
    yield judge("heads and bias sum to the layer", pairs, tolerance)


def missing_head(rest_TC: Tensor, added_HTC: Tensor) -> int:
    """The head that a difference is about: the one whose own channels it is confined to after W_O,
    which is the mark of a head cut wrongly; or else the one whose contribution it is most like."""
    H = len(added_HTC)
    by_channel = rest_TC.abs().amax(0).view(H, -1).amax(1)
    if int((by_channel > 0.01 * by_channel.max()).sum()) == 1 and H > 1:
        return int(by_channel.argmax())
    alike = torch.cosine_similarity(rest_TC.flatten(), added_HTC.flatten(1), dim=-1)
    return int(alike.abs().argmax())
