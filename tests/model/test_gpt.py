"""The GPT, against its formulas for each option; initialization, dropout and bfloat16; and, for
each block of the shipped configs, hooks and the transforms of torch.func.
"""

import copy
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from configs.config import ModelConfig
from configs.load import read_config
from formats.reference import reference_logits
from model.attention import Attend
from model.error import largest_error
from model.gpt import GPT, next_token_loss
from tests.conftest import ROOT

V, C, H, L = 127, 24, 3, 2
SMALL: dict[str, Any] = {"block_size": 12, "n_layer": L, "n_head": H, "n_embd": C}
SMALL |= {"bias": True, "tie_embeddings": True, "qk_norm": False}
OPTIONS: list[dict[str, Any]] = [
    {"dropout": 0.5, "attn_dropout": 0.5},
    {"positions": "learned", "ngrams": 10, "tie_embeddings": False, "head_bias": True},
    {"activation": "gelu", "qk_norm": True, "attention": "explicit"},
    {"activation": "relu", "bias": False, "positions": "none", "ngrams": 2},
    {"bias": False, "mlp_ratio": 0, "norm": "none", "n_kv_head": 1, "tie_embeddings": False},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)
# The choices that change what attention or a block computes: each alone, and all pairs.
CHOICES: list[dict[str, list[Any]]] = [
    {"n_kv_head": [2, 1]},
    {"mlp_ratio": [0]},
    {"window": [5, [3, 0]]},
    {"norm": ["none"]},
]
ALONE = [[{k: value} for k, values in each.items() for value in values] for each in CHOICES]
VARIANTS: list[dict[str, Any]] = [each for choice in ALONE for each in choice]
VARIANTS += [a | b for one, two in combinations(ALONE, 2) for a, b in product(one, two)]
# The blocks that the shipped configs use, each once, at a tiny size.
TINY: dict[str, Any] = {"block_size": 7, "n_layer": L, "n_head": 2, "n_embd": 8}
TINY |= {"dropout": 0.0, "attn_dropout": 0.0}
SHIPPED = {replace(ModelConfig(), **TINY): "the default"}
for path in sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("docs/speedrun/*.yaml")]):
    SHIPPED.setdefault(replace(read_config({}, str(path)).model, **TINY), path.name)
each_shipped = pytest.mark.parametrize("config", SHIPPED, ids=SHIPPED.values())


def make(spread: bool = False, **options: Any) -> GPT:
    """Return a model as initialized or, if `spread`, in float64 with weights far from zero."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(**SMALL | options), V)
    for parameter in model.parameters() if spread else ():
        nn.init.normal_(parameter, std=0.4 if model.config.norm == "layer" else 0.2)
    return model.double().eval() if spread else model


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, V, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@pytest.mark.parametrize("options", [*OPTIONS, *VARIANTS], ids=str)
def test_logits_and_gradients_match_the_reference(options: dict[str, Any], kernel: str) -> None:
    options = {"n_head": 4, "attention": kernel, "activation": "gelu", **options}
    model, text = make(spread=True, **options), tokens(2, 12)
    weights: dict[str, Tensor] = dict(model.named_parameters())
    expected = torch.stack([reference_logits(weights, model.config, row) for row in text])
    pairs = [
        torch.autograd.grad(x.square().sum(), [*weights.values()]) for x in (model(text), expected)
    ]
    for name, got, want in zip(weights, *pairs, strict=True):
        if not name.endswith("key.bias"):  # its exact gradient is zero
            assert largest_error(got, want) < 1e-4, name
    # The tolerance allows for the tables of Rotary, which are in float32.
    torch.testing.assert_close(model(text), expected, rtol=1e-5, atol=1e-5)
    cache = model.new_cache()  # also in parts, with the cache
    found = torch.cat([model(part, cache) for part in text.split([3, 1, 4, 2, 2], dim=1)], 1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="13 positions, but block_size is 12"):
        model(tokens(2, 1), cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_choices_that_change_nothing_are_bitwise_the_default(dtype: torch.dtype) -> None:
    """With as many heads of keys and values as of queries, and windows as long as the context."""
    found, same = [], dict[str, Any](n_kv_head=H, mlp_ratio=4, window=[12, 99])
    for options in ({}, same):
        model = make(**options, attn_dropout=0.5, zero_init=False)
        model.compute_dtype = dtype
        next_token_loss(model(tokens(3, 12)), tokens(3, 12)).backward()
        found.append([weight.grad for weight in model.parameters()])
    assert all(map(torch.equal, *found))


@each_option
@pytest.mark.parametrize("zero_init", [False, True])
def test_initial_weights_have_the_stated_scale(options: dict[str, Any], zero_init: bool) -> None:
    model = make(**options, n_embd=96, n_layer=5, zero_init=zero_init)
    for name, weight in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert (weight == 1).all(), name
            continue
        std = 0.02
        if name.endswith("bias") or "ngram" in name:
            std = 0.0
        elif name.endswith(("attn.out.weight", "mlp.down.weight")):
            std = 0.0 if zero_init else 0.02 / math.sqrt(10 if model.config.mlp_ratio else 5)
        elif "embedding" in name or name == "head.weight":
            std = 0.01
        # Five standard errors, of the standard deviation and of the mean.
        near = 5 * std / math.sqrt(weight.numel())
        assert weight.square().mean().sqrt().item() == pytest.approx(std, abs=near), name
        assert weight.mean().item() == pytest.approx(0, abs=near), name
    assert any(n.endswith("bias") for n, _ in model.named_parameters()) == model.config.bias
    text = tokens(64, 12)
    loss = next_token_loss(model(text[:, :-1]), text[:, 1:])
    assert loss.item() == pytest.approx(math.log(V), rel=0.02)


@pytest.mark.parametrize("place", ["embedding", "attention and MLP"])
def test_dropout_is_applied_at_each_place_in_training(place: str) -> None:
    """With p near 1, dropout zeroes everything at that place."""
    model, residual = make(True, dropout=0.5, attn_dropout=0.25, attention="explicit"), []
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.5}
    attends = {(m.dropout_p, m.kernel) for m in model.modules() if isinstance(m, Attend)}
    assert attends == {(0.25, "explicit")}
    block: Any = model.blocks[0]
    for module in (block, block.mlp_norm, model.blocks[1]):
        module.register_forward_pre_hook(lambda module, args: residual.append(args[0]))
    block.dropout = copy.deepcopy(model.dropout)
    model.dropout.p, block.dropout.p = (1 - 1e-9, 0) if place == "embedding" else (0, 1 - 1e-9)
    model.train()(tokens(2, 9))
    read, between, wrote = residual
    assert (read == 0).all() == (place == "embedding")
    assert torch.equal(read, between) == torch.equal(between, wrote) == (place != "embedding")


@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
def test_bfloat16_compute_matches_rounded_weights(options: dict[str, Any]) -> None:
    """All weights but the embeddings are rounded. Gradients stay close to those of float32."""
    model, text = make(spread=True, **options).float(), tokens(3, 9)
    rounded = copy.deepcopy(model)
    for name, parameter in rounded.named_parameters():
        if "embedding" not in name:
            parameter.data = parameter.data.bfloat16()
    exact = model(text)
    model.compute_dtype = rounded.compute_dtype = torch.bfloat16
    logits, cache = model(text), model.new_cache()
    assert torch.equal(logits, rounded(text)) and logits.dtype == torch.bfloat16
    parts = torch.cat([model(part, cache) for part in text.split([4, 1, 4], dim=1)], 1)
    assert cache.layers[0].kv_2BHSD.dtype == torch.bfloat16
    assert max((logits - exact).norm(), (parts - logits).norm()) < 0.1 * exact.norm()
    assert next_token_loss(logits, text).dtype == torch.float32
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = [torch.autograd.grad(next_token_loss(y, text), parameters) for y in (logits, exact)]
    for name, low, high in zip(names, *gradients, strict=True):
        if not name.endswith("key.bias"):  # its exact gradient is zero
            assert F.cosine_similarity(low.flatten(), high.flatten(), dim=0) > 0.95, name


@each_shipped
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # token ids have no gradients
@pytest.mark.parametrize("compute_dtype", [torch.float32, torch.bfloat16])
def test_every_module_runs_its_hooks(config: ModelConfig, compute_dtype: torch.dtype) -> None:
    """Forward hooks run equally often with gradients and without, and backward hooks as often. Only
    the list of blocks computes nothing."""
    model = GPT(config, V)
    model.compute_dtype = compute_dtype
    forward, backward = Counter[str](), Counter[str]()
    modules = {name: module for name, module in model.named_modules() if name != "blocks"}
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: forward.update([name]))
        module.register_full_backward_hook(lambda *_, name=name: backward.update([name]))
    model(tokens(2, 7)).sum().backward()
    with_gradients = forward.copy()
    forward.clear()
    with torch.no_grad():
        model(tokens(2, 7))
    assert with_gradients == forward == backward
    assert set(forward) == set(modules)


def loss_of(model: GPT, weights: dict[str, Tensor], text_T: Tensor) -> Tensor:
    logits_BTV = functional_call(model, weights, (text_T[None, :-1],))
    return next_token_loss(logits_BTV, text_T[None, 1:])


def assert_near(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@each_shipped
@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # by PyTorch's own jvp
@pytest.mark.parametrize("kernel", ["fused", "explicit"])
def test_model_is_transparent_to_torch_func(config: ModelConfig, kernel: Any) -> None:
    """torch.func.grad agrees with autograd; with the explicit formula, so do a gradient for each
    sequence by vmap, and the derivative of a gradient in a direction, forward and backward."""
    model, text = make(spread=True, **vars(replace(config, attention=kernel))), tokens(3, 8)
    weights: dict[str, Tensor] = dict(model.named_parameters())
    plain = {name: weight.detach() for name, weight in weights.items()}

    def gradient(text_T: Tensor, create_graph: bool = False) -> tuple[Tensor, ...]:
        loss = loss_of(model, weights, text_T)
        return torch.autograd.grad(loss, tuple(weights.values()), create_graph=create_graph)

    loss_gradient = grad(partial(loss_of, model))
    assert_near(tuple(loss_gradient(plain, text[0]).values()), gradient(text[0]))
    if kernel == "fused":
        return
    per_sequence = vmap(loss_gradient, (None, 0))(plain, text)
    expected = [torch.stack(each) for each in zip(*map(gradient, text), strict=True)]
    assert_near(list(per_sequence.values()), expected)
    direction = {name: torch.randn_like(weight) for name, weight in plain.items()}
    forward = jvp(lambda at: loss_gradient(at, text[0]), (plain,), (direction,))[1]
    pairs = zip(gradient(text[0], create_graph=True), direction.values(), strict=True)
    slope = torch.stack([(g * d).sum() for g, d in pairs]).sum()
    assert_near(tuple(forward.values()), torch.autograd.grad(slope, tuple(weights.values())))
