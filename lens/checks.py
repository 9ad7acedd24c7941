"""Proofs on a model's own weights: that what is shown is what was trained, and that no position
sees what comes after it.

Each proof compares numbers that must agree and says how far apart they are at most, as a share of
the largest of them; where they are farther apart than rounding explains, it names layer, head and
position. A proof that does not apply says why and counts as neither passed nor failed.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lens.capture import blocks_of, capture
from model.attention import MultiHeadAttention, attention, causal_mask
from model.generate import Decoder, window_start
from model.gpt import GPT, next_token_loss

# What rounding explains, as a share of the largest number compared.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 8e-2, torch.float16: 1e-2}
PROBES = 6  # positions that are changed, or looked back from, when leaks are looked for


@dataclass(frozen=True)
class Proof:
    """What a proof found."""

    name: str
    dtype: str

    largest: float | None
    """Largest difference, as a share of the largest number compared, up to the first that fails;
    None where not comparable."""

    tolerance: float | None

    where: str
    """Where the difference is: of a failure, in the earliest layer that fails."""

    verdict: str
    """passed, failed, or 'not comparable: ' and why."""


@dataclass(frozen=True)
class Pair:
    """Two tensors that must agree, and what their dimensions are, for naming a place."""

    place: str
    """What is compared: 'layer 0', or the name of a weight."""

    got: Tensor
    want: Tensor

    dims: str
    """A letter for each dimension: H head, T position, K position looked at, C channel, D channel
    of a head, and B or V, which are not worth naming."""

    head_width: int = 0
    """To name the head that a channel of C belongs to."""

    scale: Tensor | None = None
    """What a difference is a share of, if not of the largest number of `want`."""


def judge(name: str, dtype: torch.dtype, pairs: Sequence[Pair], tolerance: float) -> Proof:
    """Compare pairs, the earlier in the model first."""
    largest, where, failed = 0.0, "", False
    for pair in pairs:
        difference = (pair.got.double() - pair.want.double()).abs()
        difference = difference.nan_to_num(nan=torch.inf, posinf=torch.inf)
        scale = (pair.want if pair.scale is None else pair.scale).double().abs().max()
        # With a not-a-number anywhere nothing agrees with anything.
        scale = scale.nan_to_num(nan=0.0).clamp(min=torch.finfo(torch.float64).tiny)
        share = (difference / scale).max().item() if difference.any() else 0.0
        if share > largest and not failed:
            largest, where = share, place_of(pair, int(difference.argmax()))
        failed = failed or share > tolerance
    verdict = "failed" if failed else "passed"
    return Proof(name, name_of(dtype), largest, tolerance, where, verdict)


def place_of(pair: Pair, flat: int) -> str:
    """Layer, head and position of an element."""
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat), pair.got.shape)]
    at = dict(zip(pair.dims, index, strict=True))
    words = [pair.place]
    if "H" in at:
        words.append(f"head {at['H']}")
    elif "C" in at and pair.head_width:
        words.append(f"head {at['C'] // pair.head_width}")
    if "T" in at:
        words.append(f"position {at['T']}")
    if "K" in at:
        words.append(f"from position {at['K']}")
    return ", ".join(words)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def prove(model: GPT, tokens_T: Tensor, own: torch.dtype) -> list[Proof]:
    """Every proof, in float64 and in the model's own type.

    Args:
        tokens_T: a prompt of two tokens at least.
        own: the type that the run computed in.

    Raises:
        ValueError: for a prompt of one token, which no future can leak into.
    """
    if len(tokens_T) < 2:
        raise ValueError("a proof needs a prompt of two tokens at least")
    proofs = []
    for dtype in (torch.float64, own):
        twin = copy.deepcopy(model).to(dtype).eval()
        proofs += [*kernels(twin, tokens_T), *leaks(twin, tokens_T), *sums(twin, tokens_T)]
        proofs += decoding(twin, tokens_T)
    return proofs


# --- 1: kernels, formula, one projection a head, torch.nn.MultiheadAttention -------------------


def textbook(attn: MultiHeadAttention, x_BTC: Tensor) -> Tensor:
    """The layer as the formula has it, causal, on three projections split into heads.

    (With the model's own `attention`; what is independent of it is `head_by_head`.)
    """
    T = x_BTC.size(1)
    q, k, v = (
        attn.split_heads(F.linear(x_BTC, layer.weight, layer.bias))
        for layer in (attn.query, attn.key, attn.value)
    )
    q, k = attn.q_norm(q), attn.k_norm(k)
    if attn.rotary is not None:
        q, k = attn.rotary(q, 0), attn.rotary(k, 0)
    z_BHTD, _ = attention(q, k, v, causal_mask(T, T, x_BTC.device))
    return attn.out(attn.merge_heads(z_BHTD))


def head_by_head(attn: MultiHeadAttention, x_BTC: Tensor) -> Tensor:
    """The layer as the paper has it: W_q, W_k and W_v of its own for each head, the heads
    concatenated, W_O. Head h has rows h * D to (h + 1) * D of the shared projections.

    Written without `model.attention.attention`, so that it can catch a mistake there.
    """
    _, T, C = x_BTC.shape
    D = C // attn.n_head
    later = torch.ones(T, T, dtype=torch.bool, device=x_BTC.device).triu(1)
    heads = []
    for h in range(attn.n_head):
        rows = slice(h * D, (h + 1) * D)
        q_BTD, k_BTD, v_BTD = (
            F.linear(x_BTC, layer.weight[rows], None if layer.bias is None else layer.bias[rows])
            for layer in (attn.query, attn.key, attn.value)
        )
        q_BTD, k_BTD = attn.q_norm(q_BTD), attn.k_norm(k_BTD)
        if attn.rotary is not None:  # it turns by position alone, the same in every head
            q_BTD, k_BTD = attn.rotary(q_BTD, 0), attn.rotary(k_BTD, 0)
        scores_BTS = torch.einsum("btd,bsd->bts", q_BTD, k_BTD) * D**-0.5
        weights_BTS = torch.where(later, -torch.inf, scores_BTS).softmax(dim=-1)
        heads.append(torch.einsum("bts,bsd->btd", weights_BTS, v_BTD))
    return F.linear(torch.cat(heads, dim=-1), attn.out.weight, attn.out.bias)


def multihead_twin(attn: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's own module with the same weights: its three projections stacked in one matrix."""
    layers = (attn.query, attn.key, attn.value)
    C, bias = attn.out.out_features, attn.out.bias is not None
    twin = nn.MultiheadAttention(C, attn.n_head, bias=bias, batch_first=True)
    twin = twin.to(attn.out.weight.device, attn.out.weight.dtype)
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        twin.out_proj.weight.copy_(attn.out.weight)
        if bias:
            twin.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
            twin.out_proj.bias.copy_(attn.out.bias)
    return twin


def not_classical(attn: MultiHeadAttention) -> str:
    """Why `torch.nn.MultiheadAttention` has nothing to compare with; empty where it has."""
    reasons = {
        "rotary": attn.rotary is not None,
        "QK-norm": not isinstance(attn.q_norm, nn.Identity),
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def with_gradients(
    compute: Callable[[Tensor], Tensor], x_BTC: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The output for x, and the gradient of a fixed random projection of it, for x and weights."""
    x_BTC = x_BTC.detach().requires_grad_()
    output = compute(x_BTC)
    generator = torch.Generator().manual_seed(0)
    onto = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    loss = (output * onto.to(output)).sum()
    return output.detach(), list(torch.autograd.grad(loss, [x_BTC, *weights]))


def kernels(model: GPT, tokens_T: Tensor) -> Iterator[Proof]:
    """Proof 1, for each layer on what it really read, and for the whole model."""
    seen, dtype = capture(model, tokens_T[None]), model.token_embedding.weight.dtype
    blocks, tolerance = blocks_of(model), TOLERANCE[dtype]
    D = model.config.head_width
    forward: dict[str, list[Pair]] = {"formula": [], "heads": [], "torch": []}
    backward: dict[str, list[Pair]] = {"formula": [], "heads": [], "torch": []}
    kernel_pairs = []
    for i, (block, layer) in enumerate(zip(blocks, seen.layers, strict=True)):
        attn, where, T = block.attn, f"layer {i}", len(tokens_T)
        mask = causal_mask(T, T, tokens_T.device)
        formula = attention(layer.q_BHTD, layer.k_BHSD, layer.v_BHSD, mask)[0]
        kernel_pairs.append(Pair(where, layer.z_BHTD, formula, "BHTD"))
        projections = [attn.query.weight, attn.key.weight, attn.value.weight]
        weights = [*projections, attn.out.weight]

        def real(x_BTC: Tensor, attn: MultiHeadAttention = attn) -> Tensor:
            return attn(x_BTC, causal=True)

        def by_formula(x_BTC: Tensor, attn: MultiHeadAttention = attn) -> Tensor:
            return textbook(attn, x_BTC)

        def by_heads(x_BTC: Tensor, attn: MultiHeadAttention = attn) -> Tensor:
            return head_by_head(attn, x_BTC)

        output, gradients = with_gradients(real, layer.x_BTC, weights)
        for key, other in (("formula", by_formula), ("heads", by_heads)):
            want, want_gradients = with_gradients(other, layer.x_BTC, weights)
            forward[key] += [
                Pair(where, output, want, "BTC"),
                Pair(where, layer.output_BTC, want, "BTC"),
            ]
            backward[key] += gradient_pairs(where, gradients, want_gradients, D)
        if not not_classical(attn):
            twin = multihead_twin(attn)

            def by_torch(
                x_BTC: Tensor, twin: nn.MultiheadAttention = twin, hidden: Tensor = ~mask
            ) -> Tensor:  # there True is hidden
                return twin(x_BTC, x_BTC, x_BTC, attn_mask=hidden, need_weights=False)[0]

            twin_weights = [twin.in_proj_weight, twin.out_proj.weight]
            want, (x, joint, out) = with_gradients(by_torch, layer.x_BTC, twin_weights)
            forward["torch"].append(Pair(where, output, want, "BTC"))
            want_gradients = [x, *joint.chunk(3), out]
            backward["torch"] += gradient_pairs(where, gradients, want_gradients, D)
    yield judge("kernel of the run = formula, each head", dtype, kernel_pairs, tolerance)
    names = {
        "formula": "formula",
        "heads": "one projection a head",
        "torch": "nn.MultiheadAttention",
    }
    for key, name in names.items():
        if forward[key]:
            yield judge(f"layer = {name}", dtype, forward[key], tolerance)
            yield judge(f"layer = {name}, gradient", dtype, backward[key], tolerance)
        else:
            why = f"not comparable: {not_classical(blocks[0].attn)}"
            yield Proof(f"layer = {name}", name_of(dtype), None, None, "", why)
    yield from whole_model(model, tokens_T)


def gradient_pairs(
    where: str, got: Sequence[Tensor], want: Sequence[Tensor], head_width: int
) -> list[Pair]:
    """Of x, W_q, W_k, W_v and W_O, whose heads are rows of the first three, columns of the last."""
    dims = {"x": "BTC", "W_q": "CV", "W_k": "CV", "W_v": "CV", "W_O": "VC"}
    # Of all of them together: where every key is the same, W_q's gradient is rounding alone.
    scale = torch.stack([gradient.abs().max() for gradient in want])
    return [
        Pair(f"{where}, {name}", a, b, letters, 0 if name == "x" else head_width, scale)
        for (name, letters), a, b in zip(dims.items(), got, want, strict=True)
    ]


@contextmanager
def kernel(model: GPT, name: str) -> Iterator[None]:
    """Inside the `with` block all layers compute with this kernel."""
    attends = [block.attn.attend for block in blocks_of(model)]
    before = [attend.kernel for attend in attends]
    for attend in attends:
        attend.kernel = name
    try:
        yield
    finally:
        for attend, old in zip(attends, before, strict=True):
            attend.kernel = old


def whole_model(model: GPT, tokens_T: Tensor) -> Iterator[Proof]:
    """Fused and explicit kernel give the model the same logits and the same gradients."""
    dtype, found = model.token_embedding.weight.dtype, []
    names = [name for name, _ in model.named_parameters()]
    for which in ("fused", "explicit"):
        with kernel(model, which):
            logits = model(tokens_T[None, :-1])
            loss = next_token_loss(logits, tokens_T[None, 1:])
            found.append((logits.detach(), torch.autograd.grad(loss, list(model.parameters()))))
    (fused, fused_gradients), (explicit, explicit_gradients) = found
    tolerance = TOLERANCE[dtype]
    pairs = [Pair("logits", fused, explicit, "BTV")]
    yield judge("model: fused = explicit kernel", dtype, pairs, tolerance)
    # Of all weights together: a key's bias moves no softmax, and its gradient is rounding alone.
    scale = torch.stack([gradient.abs().max() for gradient in explicit_gradients])
    pairs = [
        Pair(name, a, b, "V" * a.dim(), scale=scale)
        for name, a, b in zip(names, fused_gradients, explicit_gradients, strict=True)
    ]
    # Differences of each layer add up on the way back.
    tolerance *= 1 + len(model.blocks)
    yield judge("model: fused = explicit kernel, gradient", dtype, pairs, tolerance)


# --- 2: decoding with the cache ------------------------------------------------------------------


@torch.no_grad()
def decoding(model: GPT, tokens_T: Tensor) -> Iterator[Proof]:
    """Proof 2: token by token with a cache, at every position of a text of one and a half windows
    and more, against one full pass over each window that `window_start` gives."""
    dtype, block_size = model.token_embedding.weight.dtype, model.config.block_size
    length = block_size + block_size // 2 + 2  # the window moves twice
    text_T = tokens_T.repeat(length // len(tokens_T) + 1)[:length]
    got_z: list[list[Tensor]] = []
    handles = [
        block.attn.attend.register_forward_hook(
            lambda module, args, z_BHTD: got_z[-1].append(z_BHTD[0, :, -1].clone())
        )
        for block in blocks_of(model)
    ]
    decoder, got_logits = Decoder(model), []
    try:
        for position in range(length):
            got_z.append([])
            got_logits.append(decoder.read(text_T[None, position : position + 1])[0].clone())
    finally:
        for handle in handles:
            handle.remove()
    want_z: list[list[Tensor]] = []
    want_logits: list[Tensor] = []
    starts = [window_start(position, block_size) for position in range(length)]
    for start in dict.fromkeys(starts):
        positions = [p for p in range(length) if starts[p] == start]
        seen = capture(model, text_T[None, start : positions[-1] + 1])
        for p in positions:
            want_z.append([layer.z_BHTD[0, :, p - start] for layer in seen.layers])
            want_logits.append(seen.logits_BTV[0, p - start])
    pairs = [
        Pair(f"layer {i}", torch.stack(got), torch.stack(want), "THD")
        for i, (got, want) in enumerate(
            zip(zip(*got_z, strict=True), zip(*want_z, strict=True), strict=True)
        )
    ]
    pairs.append(Pair("logits", torch.stack(got_logits), torch.stack(want_logits), "TV"))
    tolerance = TOLERANCE[dtype] * (1 + len(model.blocks))
    yield judge("decoding with the cache = full pass", dtype, pairs, tolerance)
    edges = sorted({0, block_size - 1, block_size, block_size + 1, length - 1} & set(range(length)))
    uncached = [
        Decoder(model, use_cache=False).read(text_T[None, : position + 1])[0] for position in edges
    ]
    pairs = [
        Pair(f"position {position}", got[None], want_logits[position][None], "BV")
        for position, got in zip(edges, uncached, strict=True)
    ]
    yield judge("decoding without the cache = full pass", dtype, pairs, tolerance)


# --- 3: nothing leaks ----------------------------------------------------------------------------


def spread(first: int, last: int) -> list[int]:
    """At most `PROBES` positions from first to last, both included."""
    return sorted({int(i) for i in torch.linspace(first, last, PROBES).round()})


def leaks(model: GPT, tokens_T: Tensor) -> Iterator[Proof]:
    """Proof 3: a later token changes nothing before it, to the last bit; and no gradient comes from
    the future. Where nothing changes at and after it either, the check says so and fails."""
    dtype, V = model.token_embedding.weight.dtype, model.token_embedding.num_embeddings
    name = "changing a token moves nothing before it"
    if V == 1:
        yield Proof(name, name_of(dtype), None, None, "", "not comparable: a single token")
    else:
        yield moved(model, tokens_T, name)
    yield future_gradients(model, tokens_T)


def moved(model: GPT, tokens_T: Tensor, name: str) -> Proof:
    dtype, V = model.token_embedding.weight.dtype, model.token_embedding.num_embeddings
    before = capture(model, tokens_T[None])
    layers: list[list[Pair]] = [[] for _ in before.layers]
    logits, inert = [], []
    for t in spread(1, len(tokens_T) - 1):
        other_T = tokens_T.clone()
        other_T[t] = (other_T[t] + 1) % V
        after = capture(model, other_T[None])
        for i, (a, b) in enumerate(zip(after.layers, before.layers, strict=True)):
            layers[i].append(
                Pair(f"token {t} moved layer {i}", a.z_BHTD[:, :, :t], b.z_BHTD[:, :, :t], "BHTD")
            )
        a_TV, b_TV = after.logits_BTV[0], before.logits_BTV[0]
        logits.append(Pair(f"token {t} moved logits", a_TV[:t], b_TV[:t], "TV"))
        if torch.equal(a_TV[t:], b_TV[t:]):
            inert.append(t)
    if inert:
        return Proof(name, name_of(dtype), None, 0.0, f"token {inert[0]} moves no logit", "failed")
    return judge(name, dtype, [pair for pairs in layers for pair in pairs] + logits, 0.0)


def future_gradients(model: GPT, tokens_T: Tensor) -> Proof:
    """d logit_i / d embedding_j is exactly 0 for j > i, in each head and in the whole model."""
    name = "no gradient from the future"
    seen, dtype = capture(model, tokens_T[None]), model.token_embedding.weight.dtype
    generator = torch.Generator().manual_seed(0)
    probes, pairs = spread(0, len(tokens_T) - 2), []

    def look_back(output_TX: Tensor, x_BTC: Tensor, place: str) -> bool:
        """Gradients of a random projection of each probed output; whether its own place has any."""
        alive = True
        for i in probes:
            onto = torch.randn(output_TX.size(-1), generator=generator, dtype=torch.float64)
            loss = (output_TX[i] * onto.to(output_TX)).sum()
            (gradient_BTC,) = torch.autograd.grad(loss, x_BTC, retain_graph=True)
            allowed_BTC = gradient_BTC.clone()
            allowed_BTC[0, i + 1 :] = 0
            pairs.append(Pair(f"{place}, position {i}", gradient_BTC, allowed_BTC, "BKC"))
            alive &= bool(gradient_BTC[0, i].any())
        return alive

    for layer, (block, what) in enumerate(zip(blocks_of(model), seen.layers, strict=True)):
        x_BTC = what.x_BTC.detach().requires_grad_()
        caught: list[Tensor] = []
        handle = block.attn.attend.register_forward_hook(
            lambda module, args, z_BHTD, caught=caught: caught.append(z_BHTD)
        )
        try:
            block.attn(x_BTC, causal=True)
        finally:
            handle.remove()
        for head, z_TD in enumerate(caught[0][0]):
            look_back(z_TD, x_BTC, f"layer {layer}, head {head}")
    x_BTC = seen.stream[0].detach().requires_grad_()
    stream = x_BTC
    for block in blocks_of(model):
        stream = block(stream)
    if not look_back(model.unembed(stream)[0], x_BTC, "logits"):
        return Proof(name, name_of(dtype), None, 0.0, "a logit has no gradient at all", "failed")
    return judge(name, dtype, pairs, 0.0)


# --- 4: sums -------------------------------------------------------------------------------------


@torch.no_grad()
def sums(model: GPT, tokens_T: Tensor) -> Iterator[Proof]:
    """Proof 4: the last layer of the logit lens is the model's logits; what the heads add, each
    through its columns of W_O, and the bias sum to what the layer adds."""
    seen, dtype = capture(model, tokens_T[None]), model.token_embedding.weight.dtype
    tolerance, D = TOLERANCE[dtype], model.config.head_width
    name = "heads and bias sum to the layer"
    lens = model.unembed(seen.stream[-1])
    pairs = [Pair("logits", lens, seen.logits_BTV, "BTV")]
    yield judge("last layer of the logit lens = logits", dtype, pairs, tolerance)
    pairs = []
    for i, (block, layer) in enumerate(zip(blocks_of(model), seen.layers, strict=True)):
        out = block.attn.out
        added_HTC = torch.stack(
            [
                layer.z_BHTD[0, head] @ out.weight[:, head * D : (head + 1) * D].T
                for head in range(block.attn.n_head)
            ]
        )
        total_TC = added_HTC.sum(0) if out.bias is None else added_HTC.sum(0) + out.bias
        pair = Pair(f"layer {i}", layer.output_BTC[0], total_TC, "TC")
        pairs.append(pair)
        if judge(name, dtype, [pair], tolerance).verdict == "failed":
            head = missing_head(layer.output_BTC[0] - total_TC, added_HTC)
            pairs[-1] = replace(pair, place=f"layer {i}, head {head}")
    yield judge(name, dtype, pairs, tolerance)


def missing_head(rest_TC: Tensor, added_HTC: Tensor) -> int:
    """The head that a difference is about: the one whose channels after W_O it is confined to,
    which is how a head is cut wrongly; or else the one whose own contribution it is most like."""
    H = len(added_HTC)
    by_channel = rest_TC.abs().amax(0).view(H, -1).amax(1)
    if int((by_channel > 0.01 * by_channel.max()).sum()) == 1 and H > 1:
        return int(by_channel.argmax())
    alike = torch.cosine_similarity(rest_TC.flatten(), added_HTC.flatten(1), dim=-1)
    return int(alike.abs().argmax())
