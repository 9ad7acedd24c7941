"""The engine of the report page, in a browser, against PyTorch."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from configs.config import ModelConfig
from lens.capture import attends_of, blocks_of, capture, key_hidden, key_moved
from lens.measure import repeated
from lens.metrics import induction
from model.generate import Sampling, window_start
from model.gpt import GPT
from page.html import SUPPORTED, pack
from tests.lens.models import CLASSICAL, MODERN, VOCAB, D, make_model, some_tokens
from tests.page.conftest import ATTENTIONS, open_engine

# JavaScript for the tests. Results are JSON, which playwright transfers faster than numbers. The
# edits stay the same objects, as in the page, because the engine compares them by identity.
ASK = """
let engine, edits;
function make(config, shapes, given, ...packed) {
  engine = new Engine(config, shapes);
  const [weights, means] = packed.map(floatsOf);
  engine.load(weights, (room) => room.set(weights), means);
  edits = given;
}
const ask = (tokens, chosen) =>
  JSON.stringify([...engine.run(tokens, chosen.map((i) => edits[i]))]);
"""
OFF = ["zero", "mean"]
TABLES = """(h) => {
  const tokens = Array.from({ length: engine.V }, (_, i) => i);
  const alone = new Alone(engine, tokens), at = [...Array(engine.B).keys()];
  const score = (t, s) => engine.config.positions === "rotary"
    ? alone.scores(h, [Math.max(0, t - s)], [0]) : alone.scores(h, [t], [s]);
  const scores = at.flatMap((t) => at.flatMap((s) => [...score(t, s)]));
  return JSON.stringify([scores, [...alone.logits([0, h], 3)]]);
}"""


CIRCUIT = """([text, ...asked]) => {
  engine.run(text);
  const goal = asked.length > 3 ? scoreGoal : logitGoal;
  const circuit = new Circuit(engine, goal(engine, ...asked)), { nodes } = circuit;
  const read = nodes.filter(({ rank }) => rank >= 0).slice(0, 30);
  const gaps = [circuit.goal, ...read].map((to) => {
    const { edges, biases } = circuit.edges(to, nodes);
    return edges.reduce((sum, { value }) => sum + value, biases) - to.value;
  });
  return JSON.stringify([nodes, gaps]);
}"""


@pytest.fixture(scope="module", params=["relaxed SIMD", "SIMD"])
def tab(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield a tab with the engine, as in browsers with relaxed SIMD and without it."""
    without = "WebAssembly.validate = () => false"
    tab = open_engine(browser, without if request.param == "SIMD" else "0")
    tab.add_script_tag(content=ASK)
    yield tab
    tab.close()


def random_edits(random: Random, config: ModelConfig) -> list[dict[str, Any]]:
    """Return random edits. Patches of the residual stream often share a position."""
    layer, B = random.randint(0, config.n_layer), config.block_size
    position = range(min(2, B))

    def row(width: int) -> list[float]:
        return [random.gauss(0, 1) for _ in range(width)]

    def place() -> dict[str, int]:
        return {"layer": random.randrange(config.n_layer), "head": random.randrange(config.n_head)}

    return [
        {**place(), "off": random.choice(OFF)},
        *([{"layer": place()["layer"], "off": "mlp"}] if config.mlp_ratio else []),
        {**place(), "hide": 0},
        {**place(), "hide": position[-1]},
        *(
            {**place(), "position": t, "by": random.choice([-1, 1]) * random.randint(1, B - 1)}
            for t in (0, random.randrange(B))
            if config.positions == "rotary" and B > 1
        ),
        *(
            {"layer": place()["layer"], "neuron": 5, "position": position[-1]}
            for _ in range(min(1, config.mlp_ratio))
        ),
        {**place(), "position": 0, "row": row(config.head_width)},
        *(
            {"layer": layer, "position": random.choice(position), "row": row(config.n_embd)}
            for _ in range(3)
        ),
    ]


def is_in(edit: dict[str, Any], text: list[int]) -> bool:
    """Return whether the text has the key that an edit moves or hides; its end cuts other edits."""
    return edit.get("hide", edit.get("position", 0) if "by" in edit else 0) < len(text)


@contextmanager
def edited(model: GPT, changes: list[dict[str, Any]], means_LHD: Tensor) -> Iterator[None]:
    """Apply the same edits to a PyTorch model with hooks."""
    blocks, attends = blocks_of(model), attends_of(model)

    def put(register: Any, value: Any, *index: Any) -> None:
        """Change a module's output or, with a hook that runs before the module, its input."""

        def hook(module: Any, args: Any, *output: Tensor) -> Any:
            x = (*output, *args)[0].clone()
            x[(0, *index)] = torch.as_tensor(value).to(x)
            return x if output else (x, *args[1:])

        held.callback(register(hook).remove)

    def row_of(position: int) -> slice:  # empty beyond the end of the text
        return slice(position, position + 1)

    with ExitStack() as held:
        for change in changes:
            match change:
                case {"layer": layer, "head": head, "hide": t}:
                    held.enter_context(key_hidden(model, layer, [head], t))
                case {"hide": t}:
                    for layer in range(len(blocks)):
                        held.enter_context(key_hidden(model, layer, range(model.config.n_head), t))
                case {"layer": layer, "head": head, "position": t, "by": by}:
                    held.enter_context(key_moved(model, layer, [head], t, by))
                case {"layer": layer, "off": "mlp"}:
                    put(blocks[layer].mlp.register_forward_hook, 0.0)
                case {"layer": layer, "head": head, "off": kind}:
                    mean_D = means_LHD[layer, head]
                    put(attends[layer].register_forward_hook, mean_D * (kind == "mean"), head)
                case {"layer": layer, "head": head, "position": t, "row": row}:
                    put(attends[layer].register_forward_hook, row, head, row_of(t))
                case {"layer": layer, "neuron": neuron, "position": t}:
                    put(blocks[layer].mlp.down.register_forward_pre_hook, 0.0, row_of(t), neuron)
                case {"layer": layer, "position": t, "row": row}:
                    place = [*blocks, model.final_norm][layer]
                    put(place.register_forward_pre_hook, row, row_of(t))
        yield


def make(tab: Any, model: GPT, *given: Any) -> None:
    """Load the model into the page's engine, then convert the PyTorch model to float64."""
    weights, (edits, means_LHD) = model.state_dict(), given or ([], torch.zeros(1))
    shapes = [[name, list(weight.shape)] for name, weight in weights.items()]
    packed = pack(torch.cat([weight.flatten() for weight in weights.values()])), pack(means_LHD)
    tab.evaluate("(a) => make(...a)", [dataclasses.asdict(model.config), shapes, edits, *packed])
    model.double()


@pytest.mark.parametrize(
    ("seed", "given"), [*((seed, {}) for seed in range(12)), *enumerate(ATTENTIONS)], ids=str
)
@torch.no_grad()
def test_logits_match_pytorch_for_random_models_and_edits(
    tab: Any, seed: int, given: dict[str, Any]
) -> None:
    """Texts and edits change between passes, so that stale caches fail. Options are drawn from all
    that the engine supports, except for kinds of attention."""
    random, V = Random(seed), seed + 1
    choices: dict[str, Any] = {
        name: [True, False] for name in ("qk_norm", "tie_embeddings", "bias")
    }
    choices |= {"block_size": range(1, 21), "n_layer": [1, 2, 3], "n_head": [1, 2, 3]}
    choices |= {"ngrams": [1, 2, 3, 4], "n_embd": [24], "activation": SUPPORTED["activation"]}
    choices["positions"] = SUPPORTED["positions"]
    fields = {name: random.choice(values) for name, values in choices.items()}
    if given:
        fields |= {"block_size": random.randint(7, 20), "n_layer": 3, "n_head": 4} | given
    config = ModelConfig(**fields, head_bias=not fields["tie_embeddings"] and seed % 2 == 0)
    torch.manual_seed(seed)
    model = GPT(config, V).eval()
    for weight in model.parameters():
        weight.copy_(torch.randn(weight.shape) * 0.2 + (weight.dim() == 1))
    means_LHD = torch.randn(config.n_layer, config.n_head, config.head_width)
    edits = random_edits(random, config)
    make(tab, model, edits, means_LHD)
    text: list[int] = []
    for count in (0, 9, 9, 6, 6, 4, 3, 2, 1, 0):
        if random.random() < 0.3 or not text:
            T = random.randint(1, config.block_size)
            text = (text[: random.randrange(T)] + random.choices(range(V), k=T))[:T]
        chosen = random.sample(range(len(edits)), min(count, len(edits)))
        chosen = [i for i in chosen if is_in(edits[i], text)]
        found = json.loads(tab.evaluate("(a) => ask(...a)", [text, chosen]))
        with edited(model, [edits[i] for i in chosen], means_LHD.double()):
            seen = capture(model, torch.tensor([text]))
        expected = seen.logits_BTV[0].numpy()
        logits = np.array(found).reshape(expected.shape)
        assert np.abs(logits - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())
    t, token = random.randrange(len(text)), random.randrange(V)
    parts = tab.evaluate("(a) => engine.contributions(...a)", [t, token])
    total = parts["embedding"] + parts["biases"] + sum(parts["heads"]) + sum(parts["mlps"])
    assert total == pytest.approx(logits[t, token], abs=1e-4)
    make(tab, model, edits, means_LHD)
    for t in range(len(text)):
        one_by_one = json.loads(tab.evaluate("(a) => ask(...a)", [text[: t + 1], []]))
    assert one_by_one == found  # bitwise


def test_models_never_share_weights_by_a_name(tab: Any) -> None:
    """Engines share the weights of one object, and only those."""
    call = """() => {
      const config = { ...engine.config, n_layer: 0 };
      const shapes = [["token_embedding.weight", [3, engine.C]]];
      const first = (key, number) => {
        const made = new Engine(config, shapes);
        made.load(key, (room) => room.fill(number));
        return made;
      };
      const snapshot = { step: 0 };
      const made = [first(snapshot, 1), first({ step: 0 }, 2), first(snapshot, 3)];
      return made.map(({ memory, at }) => memory[at["token_embedding.weight"]]);
    }"""
    make(tab, make_model())
    assert tab.evaluate(call) == [1, 2, 1]


SHARED = replace(MODERN, n_kv_head=1, mlp_ratio=0, block_size=8)
SHARED_CLASSICAL = replace(CLASSICAL, n_kv_head=1, mlp_ratio=0, window=5)


@pytest.mark.parametrize(
    "config",
    [MODERN, CLASSICAL, replace(MODERN, positions="none"), SHARED, SHARED_CLASSICAL],
    ids=str,
)
@torch.no_grad()
def test_layer_0_tables_match_attention_and_ov_circuit(tab: Any, config: ModelConfig) -> None:
    h, T, V = 1, config.block_size, VOCAB
    model: Any = make_model(config)
    make(tab, model)
    before = json.loads(tab.evaluate("(a) => ask(...a)", [some_tokens(1, T)[0].tolist(), []]))
    scores, logits = map(torch.tensor, json.loads(tab.evaluate(TABLES, h)))
    assert tab.evaluate('[...engine.take("logits", engine.V)]') == before
    text_BT, place = some_tokens(1000, T), torch.arange(T)
    scores_BTS = scores.view(T, T, V, V)[
        place[:, None], place, text_BT[:, :, None], text_BT[:, None]
    ]
    layer = capture(model, text_BT).layers[0]
    expected_BTS = layer.q_BHTD[:, h] @ layer.k_BHSD[:, h].mT / D**0.5
    assert (scores_BTS - expected_BTS).tril().abs().max() < 1e-4
    block, of_head = model.blocks[0], slice(h * D, (h + 1) * D)
    x_VC = model.embed(torch.arange(V)[:, None].expand(V, 4))[:, 3]
    v_VHD = block.attn.value(block.attn_norm(x_VC)).unflatten(-1, (-1, D))
    v_VD = v_VHD[:, h * v_VHD.size(1) // model.config.n_head]
    y_VC = v_VD @ block.attn.out.weight[:, of_head].T
    y_VC = (y_VC - y_VC.mean(-1, keepdim=True)) * model.final_norm.weight
    assert torch.allclose(y_VC @ model.head.weight.T, logits.view(V, V).double(), 1e-4, 1e-4)


@torch.no_grad()
def scores_through(model: Any, earlier: tuple[int, int], later: tuple[int, int]) -> Tensor:
    """Return the scores of a head's queries with keys into which an earlier head copied a token,
    (query tokens, key tokens)."""
    (i, a), (j, b), E_VC = earlier, later, model.token_embedding.weight

    def read(layer: int, kind: str, h: int, x_VC: Tensor) -> Tensor:
        block = model.blocks[layer]
        x_1VC = getattr(block.attn, kind)(block.attn_norm(x_VC))[None]
        return Tensor(block.attn.for_each_query(block.attn.split_heads(x_1VC))[0, h])

    W_CD = model.blocks[i].attn.out.weight[:, a * D : (a + 1) * D]
    k_VD = read(j, "key", b, read(i, "value", a, E_VC) @ W_CD.T)
    return read(j, "query", b, E_VC) @ k_VD.T / D**0.5


@pytest.mark.parametrize("config", [MODERN, CLASSICAL, SHARED], ids=str)
def test_scores_through_an_earlier_head_match_matmuls(tab: Any, config: ModelConfig) -> None:
    model = make_model(config)
    make(tab, model)
    found = tab.evaluate("""() => {
      const tokens = Array.from({ length: engine.V }, (_, i) => i);
      return [...new Alone(engine, tokens).scoresThrough([0, 1], [2, 0])];
    }""")
    expected = scores_through(model, (0, 1), (2, 0)).flatten().tolist()
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        replace(CLASSICAL, positions="rotary", head_bias=True),
        replace(MODERN, activation="relu", ngrams=2, tie_embeddings=True),
        replace(SHARED_CLASSICAL, positions="rotary"),
        replace(MODERN, n_kv_head=1, window=[0, 4, 6]),
    ],
    ids=["classical", "modern", "attention only", "grouped"],
)
@pytest.mark.parametrize("asked", [(7, 2, 5), (2, 1, 8, 6)], ids=["logit", "score"])
def test_circuit_parts_sum_to_goal(tab: Any, config: ModelConfig, asked: tuple[int, ...]) -> None:
    """A node's value is its activation times gradient, with nonlinear factors held constant."""
    text_BT = some_tokens(1, 9)
    model: Any = make_model(config)
    make(tab, model)
    nodes, gaps = json.loads(tab.evaluate(CIRCUIT, [text_BT[0].tolist(), *asked]))
    assert max(map(abs, gaps)) < 1e-4
    written: list[Tensor] = []

    def kept(x: Tensor) -> Tensor:
        x.retain_grad()
        written.append(x)
        return x

    def norm(layer: Any, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        scale = (x.detach().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        bias = getattr(layer, "bias", None)
        return x * scale * layer.weight + (0 if bias is None else bias)

    x_BTC = kept(model.embed(text_BT))
    layers = capture(model, text_BT).layers
    for i, (block, seen) in enumerate(zip(model.blocks, layers, strict=True)):
        attn, read_BTC = seen.attn, norm(block.attn_norm, x_BTC)
        if asked[:-3] == (i,):
            k_BHSD = attn.for_each_query(attn.split_heads(attn.key(read_BTC)))
            k_BHSD = norm(attn.k_norm, k_BHSD) if config.qk_norm else k_BHSD
            _, h, q, k = asked
            goal = seen.q_BHTD[0, h, q] @ block.attn.rotary(k_BHSD, 0)[0, h, k] / D**0.5
            break
        v_BHSD = attn.for_each_query(attn.split_heads(attn.value(read_BTC)))
        z_BHTD = kept(seen.weights_BHTS @ v_BHSD)
        x_BTC = x_BTC + attn.out(attn.merge_heads(z_BHTD))
        if not config.mlp_ratio:
            continue
        y_BTC, mlp = norm(block.mlp_norm, x_BTC), block.mlp
        u = mlp.up(y_BTC)
        gate = mlp.activation(u) / u
        x_BTC = x_BTC + mlp.down(kept(u * gate.detach()))
    else:
        t, plus, minus = asked
        weight_VC = (model.head or model.token_embedding).weight
        goal = norm(model.final_norm, x_BTC)[0, t] @ (weight_VC[plus] - weight_VC[minus])
    goal.backward()
    embedding, *values = [(x.grad * x)[0].detach() for x in written]  # type: ignore[operator]
    left = {-1: embedding.sum(-1, keepdim=True)}  # by rank
    for i, value in enumerate(values):
        rank = i if config.mlp_ratio else 2 * i
        left[rank] = value if rank % 2 else value.sum(-1).T
    for node in nodes:
        left[node["rank"]][node["position"], node["index"]] -= node["value"]
    assert max(each.abs().max() for each in left.values()) < 1e-4


def test_learning_stages_are_marked_when_first_reached(tab: Any) -> None:
    scores = [{"previous_token": [0.2, i / 10], "induction": [i / 20]} for i in range(6)]
    scores = [each | {"weight_on_match": [i / 9]} for i, each in enumerate(scores)]  # of a task
    snapshots = [{"lens_loss": [9, 5 - i], "scores": scores[i]} for i in range(6)]
    names = ("uniform", "unigram", "bigram", "3-gram", "4-gram", "5-gram")
    losses = [*zip(names, (5.5, 3.7, 2.8, 2.5, 1.5, -1), strict=True)]
    scored = {"previous_token": 0.05, "induction": 0.05, "weight_on_match": 0.2}
    # Also below the bigram at 3; never below the 5-gram.
    marks = [(3, "below 3-gram"), (3, "previous-token head"), (4, "head on the match")]
    for baselines, more in ((losses, []), (losses[:-1], [(4, "below 4-gram")])):
        found = [
            (mark["at"], mark["label"])
            for key, uniform in scored.items()
            for mark in tab.evaluate(
                "(a) => stagesOf(...a)",
                [snapshots, dict(baselines), {"key": key, "uniform": uniform}],
            )
        ]
        assert {*found} == {*marks, *more}


def test_window_start_matches_the_model(tab: Any) -> None:
    places = [[position, block_size] for position in range(40) for block_size in range(1, 10)]
    found = tab.evaluate("(places) => places.map((place) => windowStart(...place))", places)
    assert found == [window_start(*place) for place in places]


@torch.no_grad()
def test_induction_on_a_text_is_the_score_if_the_text_is_a_repeated_string(tab: Any) -> None:
    tokens_BT = repeated(VOCAB, 6, 1)
    weights_TS = capture(make_model(), tokens_BT).layers[1].weights_BHTS[0, 1]
    rows = [x for t in range(12) for x in weights_TS[t, : t + 1].tolist()]
    found = tab.evaluate("(a) => inductionOn(...a)", [rows, tokens_BT[0].tolist()])
    assert found == pytest.approx(float(induction(weights_TS)), abs=1e-6)


@pytest.mark.parametrize("top_k", [1, 2, 3, 9])
def test_top_k_keeps_ties_as_python_does(tab: Any, top_k: int) -> None:
    logits = [2.0, -1.0, 2.0, 0.5, 2.0, 0.5]
    call = """([logits, topK]) => [...Array(300).keys()].map((seed) => {
      const engine = { B: 9, V: logits.length, at: { logits: 0 }, memory: logits, set() {},
        *compute() {} };
      engine.memory.subarray = engine.memory.slice;
      return generate(engine, [0], 1, { temperature: 2, topK, seed }).next().value.id;
    })"""
    p_V = Sampling(temperature=2, top_k=top_k).probabilities(torch.tensor([logits]))[0]
    found = tab.evaluate(call, [logits, top_k])
    assert {*found} == {*p_V.nonzero().flatten().tolist()}
