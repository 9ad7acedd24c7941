"""The network: shapes, causality, options, n-grams, GPT-2's block."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from model.config import ModelConfig
from model.gpt import GPT, Block, next_token_loss, squared_relu

V = 17
SMALL: dict[str, Any] = {"block_size": 12, "n_layer": 2, "n_head": 2, "n_embd": 16}
SMALL |= {"positions": "rotary", "norm": "layernorm", "activation": "relu2", "ngrams": 1}
# Blocks that start by doing nothing would hide from these tests what goes on inside them.
SMALL |= {"qk_norm": False, "tie_head": True, "bias": True, "zero_init": False}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"positions": "learned"},
    {"ngrams": 2},
    {"ngrams": 4},
    {"norm": "rmsnorm"},
    {"activation": "gelu"},
    {"activation": "swiglu"},
    {"qk_norm": True},
    {"tie_head": False},
    {"bias": False},
    {"dropout": 0.5},
    {"attn_dropout": 0.5},
    {"attention": "explicit"},
]


def make(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(**{**SMALL, **options}), V)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, V, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
class TestEveryOption:
    def test_logits_for_every_position(self, options: dict[str, Any]) -> None:
        assert make(**options)(tokens(3, 7)).shape == (3, 7, V)

    def test_nothing_leaks_from_the_future(self, options: dict[str, Any]) -> None:
        model = make(**options).double().eval()
        text = tokens(1, 12)
        before = model(text)
        for t in range(12):
            changed = text.clone()
            changed[0, t] = (changed[0, t] + 1) % V
            moved = (model(changed) - before).abs().amax(-1)[0]
            assert (moved[:t] == 0).all(), f"token {t} moves a logit before it"
            assert (moved[t:] > 0).all(), f"token {t} does not reach what follows it"

    def test_gradients_reach_no_future_token_and_every_weight(
        self, options: dict[str, Any]
    ) -> None:
        model = make(**options).double().eval()
        seen: list[torch.Tensor] = []

        def keep(module: object, args: object, output: torch.Tensor) -> None:
            output.retain_grad()
            seen.append(output)

        model.token_embedding.register_forward_hook(keep)
        model(tokens(1, 12))[0, 5].square().sum().backward()
        gradient = seen[0].grad
        assert gradient is not None
        assert (gradient[0, 6:] == 0).all() and (gradient[0, :6] != 0).any(-1).all()
        unreached = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()}
        assert not unreached

    def test_initial_loss_is_that_of_guessing(self, options: dict[str, Any]) -> None:
        text = tokens(64, 13)
        loss = next_token_loss(make(**options)(text[:, :-1]), text[:, 1:])
        assert loss.item() == pytest.approx(math.log(V), rel=0.02)

    def test_learns(self, options: dict[str, Any]) -> None:
        model = make(**options)
        text = torch.arange(13).repeat(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
        for _ in range(40):
            next_token_loss(model(text[:, :-1]), text[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        assert next_token_loss(model(text[:, :-1]), text[:, 1:]) < 0.3


def block(model: GPT, layer: int = 0) -> Block:
    found = model.blocks[layer]
    assert isinstance(found, Block)
    return found


def names(model: GPT) -> set[str]:
    return {name for name, _ in model.named_parameters()}


def test_options_change_what_they_say() -> None:
    assert "position_embedding.weight" in names(make(positions="learned"))
    assert "position_embedding.weight" not in names(make(positions="rotary"))
    assert "head.weight" in names(make(tie_head=False))
    assert "head.weight" not in names(make(tie_head=True))
    assert not [name for name in names(make(bias=False)) if name.endswith("bias")]
    assert "blocks.0.attn_norm.bias" not in names(make(norm="rmsnorm"))
    assert "blocks.1.attn.q_norm.weight" in names(make(qk_norm=True))
    gelu, swiglu = make(n_embd=48), make(n_embd=48, activation="swiglu")
    assert sum(p.numel() for p in block(swiglu).mlp.parameters()) == pytest.approx(
        sum(p.numel() for p in block(gelu).mlp.parameters()), rel=0.02
    )


def test_tied_head_shares_its_weight() -> None:
    model = make(tie_head=True)
    text = tokens(1, 4)
    before = model(text)
    with torch.no_grad():
        model.token_embedding.weight[3] += 1
    assert (model(text)[..., 3] != before[..., 3]).all()


def test_squared_relu() -> None:
    mlp = block(make(activation="relu2")).mlp
    x = torch.randn(1, 3, 16)
    torch.testing.assert_close(mlp(x), mlp.down(mlp.up(x).clamp(min=0) ** 2))


def test_squared_relu_has_the_gradient_of_its_formula() -> None:
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    y = squared_relu(x)
    assert torch.equal(y, F.relu(x) ** 2) and torch.equal(squared_relu(x.detach()), y)
    direction = torch.randn_like(y)
    (ours,) = torch.autograd.grad(y, x, direction, retain_graph=True)
    (formula,) = torch.autograd.grad(F.relu(x) ** 2, x, direction)
    torch.testing.assert_close(ours, formula, rtol=0, atol=1e-15)
    assert torch.autograd.gradcheck(squared_relu, (x,))


def test_swiglu() -> None:
    mlp = block(make(activation="swiglu")).mlp
    x = torch.randn(1, 3, 16)
    gate = mlp.gate(x)
    torch.testing.assert_close(mlp(x), mlp.down(gate * gate.sigmoid() * mlp.up(x)))


def test_qk_norm_makes_scores_independent_of_the_length_of_queries() -> None:
    model = make(qk_norm=True, bias=False).double().eval()
    before = model(tokens(1, 8))
    with torch.no_grad():
        block(model).attn.query.weight *= 10
    torch.testing.assert_close(model(tokens(1, 8)), before, rtol=0, atol=1e-4)


def test_gpt2_block() -> None:
    """The whole network in GPT-2's form, written out once more in plain operations."""
    model = make(positions="learned", activation="gelu", tie_head=True, bias=True).double().eval()
    w = {name: p.detach() for name, p in model.named_parameters()}
    text = tokens(2, 9)
    C, H = 16, 2

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / (var + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["token_embedding.weight"][text] + w["position_embedding.weight"][:9]
    for i in range(2):
        h = norm(x, f"blocks.{i}.attn_norm")
        q, k, v = (linear(h, f"blocks.{i}.attn.{name}") for name in ("query", "key", "value"))
        heads = []
        for head in range(H):
            part = slice(head * C // H, (head + 1) * C // H)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(C / H)
            scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
            heads.append(scores.softmax(-1) @ v[..., part])
        x = x + linear(torch.cat(heads, -1), f"blocks.{i}.attn.out")
        h = linear(norm(x, f"blocks.{i}.mlp_norm"), f"blocks.{i}.mlp.up")
        h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
        x = x + linear(h, f"blocks.{i}.mlp.down")
    logits = norm(x, "final_norm") @ w["token_embedding.weight"].T
    torch.testing.assert_close(model(text), logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ["gelu", "relu2", "swiglu"])
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_start_by_doing_nothing_if_asked(bias: bool, activation: str) -> None:
    x = torch.randn(2, 5, 16)
    for layer in (0, 1):
        assert torch.equal(
            block(make(zero_init=True, bias=bias, activation=activation), layer)(x), x
        )
        small = block(make(zero_init=False, bias=bias, activation=activation), layer)(x)
        assert not torch.equal(small, x)


# --- n-grams -------------------------------------------------------------------------------------


def with_ngrams(ngrams: int, **options: Any) -> GPT:
    """With vectors of n-grams as large as the others, as after training."""
    model = make(ngrams=ngrams, **options)
    for table in model.ngram_embeddings:
        nn.init.normal_(table.get_parameter("weight"))
    return model.double().eval()


def test_ngrams_change_nothing_at_the_start() -> None:
    plain, ngrams = make(ngrams=1), make(ngrams=3)
    weights = {**ngrams.state_dict(), **plain.state_dict()}
    ngrams.load_state_dict(weights)
    assert weights.keys() > plain.state_dict().keys()
    assert torch.equal(plain(tokens(2, 12)), ngrams(tokens(2, 12)))


def test_ngrams_are_those_that_end_with_the_token() -> None:
    """In a table with a row for each, the row is the n-gram read as a number to the base V."""
    model = with_ngrams(3)
    text = tokens(2, 12)
    padded = F.pad(text, (2, 0))
    expected = model.token_embedding.weight[text]
    bigrams, trigrams = (table.get_parameter("weight") for table in model.ngram_embeddings)
    assert bigrams.shape == (V**2, 16) and trigrams.shape == (V**3, 16)
    expected = expected + bigrams[padded[:, 1:-1] * V + text]
    expected = expected + trigrams[padded[:, :-2] * V**2 + padded[:, 1:-1] * V + text]
    torch.testing.assert_close(model.embed(text), expected)


@pytest.mark.parametrize(("vocab_size", "ngrams"), [(17, 5), (200, 3), (60_000, 3), (256, 12)])
def test_tables_of_ngrams_have_a_largest_size(vocab_size: int, ngrams: int) -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(**{**SMALL, "n_embd": 4, "ngrams": ngrams}), vocab_size)
    rows = [table.get_parameter("weight").size(0) for table in model.ngram_embeddings]
    assert rows == [min(vocab_size**n, 16_381) for n in range(2, ngrams + 1)]
    text = torch.full((1, 12), vocab_size - 1)  # the largest codes
    assert model(text).shape == (1, 12, vocab_size)


@pytest.mark.parametrize("ngrams", [2, 3, 5])
def test_an_ngram_reaches_no_further_back_than_it_is_long(ngrams: int) -> None:
    model = with_ngrams(ngrams)
    text = tokens(1, 12)
    before = model.embed(text)
    for t in range(12):
        changed = text.clone()
        changed[0, t] = (changed[0, t] + 1) % V
        moved = (model.embed(changed) != before).any(-1)[0]
        assert moved.nonzero().flatten().tolist() == list(range(t, min(t + ngrams, 12)))


@given(
    st.integers(1, 5),
    st.sampled_from(["learned", "rotary"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
def test_with_a_cache_any_pieces_of_a_text_are_the_whole(
    ngrams: int, positions: str, pieces: list[int]
) -> None:
    pieces = pieces[: max(n for n in range(len(pieces) + 1) if sum(pieces[:n]) <= 12)]
    model = with_ngrams(ngrams, positions=positions)
    text = tokens(2, sum(pieces))
    cache = model.new_cache(2)
    for _ in range(2):  # the second time in the same buffers
        parts = [model(piece, cache) for piece in torch.split(text, pieces, dim=1)]
        assert cache.length == sum(pieces)
        torch.testing.assert_close(torch.cat(parts, 1), model(text), rtol=0, atol=1e-12)
        cache.forget()
        assert cache.length == 0


# --- what is left --------------------------------------------------------------------------------


def test_dropout_is_for_training_only() -> None:
    model = make(dropout=0.5)
    assert not torch.equal(model(tokens(1, 8)), model(tokens(1, 8)))
    model.eval()
    assert torch.equal(model(tokens(1, 8)), model(tokens(1, 8)))


def test_explicit_and_fused_give_the_same_logits() -> None:
    fused, explicit = make(attention="fused").double(), make(attention="explicit").double()
    torch.testing.assert_close(fused(tokens(2, 12)), explicit(tokens(2, 12)), rtol=0, atol=1e-12)


def test_refuses_more_than_block_size() -> None:
    with pytest.raises(ValueError, match="13 positions, but block_size is 12"):
        make()(tokens(1, 13))


def test_loss_is_cross_entropy_in_nats() -> None:
    logits, targets = torch.randn(2, 3, V), tokens(2, 3)
    by_hand = -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(next_token_loss(logits, targets), by_hand)
    uniform = torch.zeros(2, 3, V, dtype=torch.bfloat16)
    assert next_token_loss(uniform, targets).item() == pytest.approx(math.log(V))
    assert F.cross_entropy(logits.view(-1, V), targets.view(-1), reduction="sum").item() == (
        pytest.approx(next_token_loss(logits, targets, "sum").item())
    )
