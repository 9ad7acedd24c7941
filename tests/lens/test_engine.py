"""The engine of the report page, in a real browser: what PyTorch computes, whatever is edited."""

import base64
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lens import report
from lens.capture import attends_of, blocks_of, capture, hooked
from model.attention import attention
from model.config import ModelConfig
from model.gpt import GPT

ENGINE = (Path(report.__file__).parent / "engine.js").read_text(encoding="utf-8")
# In the page: the engine, and what a test asks of it, as plain numbers.
ASK = """
let engine;
function make(config, shapes, weights, means) {
  const numbers = (text) =>
    new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  engine = new Engine(config, shapes);
  engine.load(numbers(weights), numbers(means));
}
function ask(tokens, edits) {
  const logits = [...engine.run(tokens, edits)];
  const heads = [...Array(engine.L * engine.H).keys()];
  const attention = heads.map((i) => [
    ...engine.attention(Math.floor(i / engine.H), i % engine.H),
  ]);
  const lens = [...engine.lens(Math.floor(engine.L / 2))];
  return { logits, attention, lens };
}
"""


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Every choice of the model, at sizes small enough for a test."""
    config = ModelConfig(
        block_size=draw(st.integers(1, 40)),
        n_layer=draw(st.integers(1, 3)),
        n_head=draw(st.sampled_from([1, 2, 3])),
        n_embd=24,
        ngrams=draw(st.integers(1, 4)),
    )
    choices: dict[str, Any] = {
        "positions": ["learned", "rotary", "none"],
        "norm": ["layernorm", "rmsnorm"],
        "activation": ["gelu", "gelu_tanh", "relu2", "swiglu"],
        **{name: [True, False] for name in ("qk_norm", "tie_embeddings", "bias")},
    }
    drawn = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    return dataclasses.replace(config, **drawn)


@st.composite
def texts(draw: st.DrawFn, config: ModelConfig, V: int) -> list[int]:
    count = draw(st.integers(1, config.block_size))
    return draw(st.lists(st.integers(0, V - 1), min_size=count, max_size=count))


@st.composite
def edits(draw: st.DrawFn, config: ModelConfig) -> list[dict[str, Any]]:
    """Some of what a reader may do to a pass; numbers to put somewhere come from a seed."""
    layers, heads = st.integers(0, config.n_layer - 1), st.integers(0, config.n_head - 1)
    positions, found = st.integers(0, config.block_size - 1), []
    random = np.random.default_rng(draw(st.integers(0, 99)))

    def row(width: int) -> list[float]:
        return random.normal(size=width).astype(np.float32).tolist()

    for kind in draw(st.lists(st.sampled_from(["off", "mlp", "hide", "patch", "z"]), max_size=4)):
        layer, head, position = draw(layers), draw(heads), draw(positions)
        if kind == "off":
            found.append({"layer": layer, "head": head, "off": draw(st.sampled_from(OFF))})
        elif kind == "mlp":
            found.append({"layer": layer, "off": "mlp"})
        elif kind == "hide":
            where = {"layer": layer, "head": head}
            some = draw(st.sampled_from([[], ["layer"], ["head"], ["layer", "head"]]))
            found.append({"hide": position, **{name: where[name] for name in some}})
        elif kind == "patch":
            layer = draw(st.integers(0, config.n_layer))
            found.append({"layer": layer, "position": position, "row": row(config.n_embd)})
        else:
            place = {"layer": layer, "head": head, "position": position}
            found.append({**place, "row": row(config.head_width)})
    return found


OFF = ["zero", "mean"]


@contextmanager
def edited(model: GPT, changes: list[dict[str, Any]], means_LHD: Tensor) -> Iterator[None]:
    """The same edits made by hooks."""
    with ExitStack() as held:

        def put(module: torch.nn.Module, change: dict[str, Any]) -> None:
            def hook(module: torch.nn.Module, args: Any) -> Any:
                x_BTC = args[0].clone()
                if change["position"] < x_BTC.size(1):
                    x_BTC[0, change["position"]] = torch.tensor(change["row"])
                return (x_BTC, *args[1:])

            held.callback(module.register_forward_pre_hook(hook).remove)

        for layer, (block, attend) in enumerate(
            zip(blocks_of(model), attends_of(model), strict=True)
        ):
            here = [change for change in changes if change.get("layer", layer) == layer]
            attends = partial(attend_edited, here, means_LHD[layer])
            held.enter_context(hooked([attend], attends))
            if {"layer": layer, "off": "mlp"} in here:
                held.enter_context(hooked([block.mlp], lambda module, args, y: y * 0))
        places = [*blocks_of(model), model.final_norm]
        for change in changes:
            if "row" in change and "head" not in change:
                put(places[change["layer"]], change)
        yield


def attend_edited(
    changes: list[dict[str, Any]], means_HD: Tensor, module: Any, args: Any, z_BHTD: Tensor
) -> Tensor:
    q_BHTD, k_BHSD, v_BHSD = args[:3]
    _, H, T, _ = q_BHTD.shape
    mask_HTS = torch.ones(H, T, T, dtype=torch.bool).tril()
    for change in changes:
        if "hide" in change:
            head = change.get("head", slice(None))
            mask_HTS[head, change["hide"] + 1 :, change["hide"] : change["hide"] + 1] = False
    z_BHTD = attention(q_BHTD, k_BHSD, v_BHSD, mask_HTS)[0]
    for change in changes:
        head = change.get("head")
        if change.get("off") in OFF:
            z_BHTD[0, head] = means_HD[head] if change["off"] == "mean" else 0.0
        if "row" in change and head is not None and change["position"] < T:
            z_BHTD[0, head, change["position"]] = torch.tensor(change["row"])
    return z_BHTD


@pytest.fixture(scope="module")
def tab(window: Any) -> Any:
    """An empty page that has the engine."""
    tab, _ = window
    tab.goto("about:blank")
    tab.add_script_tag(content=ENGINE + ASK)
    return tab


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelConfig, int, list[list[int]], list[list[dict[str, Any]]]]:
    """A model, the size of its vocabulary, and some texts with edits, one after the other."""
    config, V = draw(configs()), draw(st.integers(1, 30))
    tokens = [draw(texts(config, V))]
    for _ in range(draw(st.integers(0, 2))):
        tokens.append(draw(st.just(tokens[-1]) | texts(config, V)))
    return config, V, tokens, [draw(edits(config)) for _ in tokens]


def make(tab: Any, config: ModelConfig, V: int) -> tuple[GPT, Tensor]:
    """A model whose weights all matter, in the page too; and means of its heads."""
    torch.manual_seed(V)
    model = GPT(config, V).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape) * 0.2 + (weight.dim() == 1))
    means_LHD = torch.randn(config.n_layer, config.n_head, config.head_width)
    weights = model.state_dict()
    shapes = [[name, list(weight.shape)] for name, weight in weights.items()]
    numbers = [torch.cat([weight.flatten() for weight in weights.values()]), means_LHD]
    packed = [base64.b64encode(x.numpy().tobytes()).decode() for x in numbers]
    tab.evaluate("(a) => make(...a)", [dataclasses.asdict(config), shapes, *packed])
    return model.double(), means_LHD.double()


@given(cases())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@torch.no_grad()
def test_it_computes_what_pytorch_computes(tab: Any, case: Any) -> None:
    """Whatever was computed before stays or goes; and no trace of it is left, to the last bit."""
    config, V, tokens, changes = case
    model, means_LHD = make(tab, config, V)
    for text, here in zip(tokens, changes, strict=True):
        found = tab.evaluate("(a) => ask(...a)", [text, here])
        with edited(model, here, means_LHD):
            seen = capture(model, torch.tensor([text]))
        expected = seen.logits_BTV[0].numpy()
        scale = max(1.0, np.abs(expected).max())
        logits = np.array(found["logits"]).reshape(expected.shape)
        assert np.abs(logits - expected).max() < 1e-4 * scale
        if not here:
            weights = torch.cat([layer.weights_BHTS[0] for layer in seen.layers]).numpy()
            lower = np.tril_indices(len(text))
            assert np.abs(np.array(found["attention"]) - weights[:, *lower]).max() < 1e-5
            middle = model.unembed(seen.residual[config.n_layer // 2])[0].numpy()
            apart = np.array(found["lens"]).reshape(middle.shape) - middle
            assert np.abs(apart).max() < 1e-4 * max(1.0, np.abs(middle).max())


@given(cases(), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_after_any_edit_it_is_as_from_the_start(tab: Any, case: Any, data: st.DataObject) -> None:
    """To the last bit, with one edit at a time, of which each leaves as much as it can."""
    config, V, (text, *_), _ = case
    make(tab, config, V)
    for _ in range(4):
        here = data.draw(edits(config))[:1]
        text = data.draw(st.just(text) | texts(config, V))
        found = tab.evaluate("(a) => ask(...a)", [text, here])
        again = tab.evaluate("(a) => { engine.valid.fill(0); return ask(...a); }", [text, here])
        assert again == found


@given(configs(), st.integers(1, 30), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
def test_votes_sum_to_the_logit(tab: Any, config: ModelConfig, V: int, data: st.DataObject) -> None:
    make(tab, config, V)
    text = data.draw(texts(config, V))
    t, token = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, V - 1))
    logits = tab.evaluate("(a) => ask(...a)", [text, []])["logits"]
    votes = tab.evaluate("(a) => engine.votes(...a)", [t, token])
    assert len(votes["heads"]) == config.n_layer * config.n_head
    total = votes["embedding"] + votes["biases"] + sum(votes["heads"]) + sum(votes["mlps"])
    assert total == pytest.approx(logits[t * V + token], abs=1e-4)


@given(configs(), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_a_patch_taken_back_leaves_nothing(
    tab: Any, config: ModelConfig, data: st.DataObject
) -> None:
    """Of patches that come and go on the same text, also two of one place."""
    make(tab, config, 9)
    text = data.draw(texts(config, 9))
    places = st.tuples(st.integers(0, config.n_layer), st.integers(0, len(text) - 1))
    some = data.draw(st.lists(places, min_size=1, max_size=3))
    tab.evaluate(
        "(places) => globalThis.patches = places.map(([layer, position], i) =>"
        " ({ layer, position, row: new Float32Array(engine.C).fill(i + 0.5) }))",
        some + some[:1],
    )
    sets = st.lists(st.integers(0, len(some)), unique=True)
    for chosen in [*data.draw(st.lists(sets, min_size=2, max_size=4)), []]:
        call = "([text, chosen]) => ask(text, chosen.map((i) => patches[i]))"
        found = tab.evaluate(call, [text, chosen])
        again = tab.evaluate(
            call.replace("=> ask", "=> engine.valid.fill(0) && ask"), [text, chosen]
        )
        assert found == again
