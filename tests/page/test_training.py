"""Training in the page, in a browser, against PyTorch."""

import base64
import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.errors import UserError
from configs.load import Config
from data.corpus import Corpus
from data.tokenizer import CharTokenizer
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from page.bundle import bundle
from page.html import PARTS, content_hash, pack
from run.checkpoint import Header, open_run
from tests.lens.models import CLASSICAL, MODERN, VOCAB
from training.config import TrainConfig
from training.optim import get_lr_scale, make_optimizer
from training.runtime import Machine
from training.step import TrainState, train_step

SCRIPT = bundle(Path(__file__).parent / "training.js")
# JavaScript for the tests. Numbers travel in base64, which playwright transfers faster.
ASK = """
const script = document.currentScript.textContent;
const base64 = (floats) => btoa([...new Uint8Array(floats.buffer, floats.byteOffset, floats.length *
  floats.BYTES_PER_ELEMENT)].map((byte) => String.fromCharCode(byte)).join(""));
function gradients(config, vocabSize, packed, batch, plain) {
  const { kernels } = arena;
  if (plain) arena.kernels = undefined; // as without WebAssembly
  const learner = new Learner(config, shapesOf(config, vocabSize));
  learner.load({}, (room) => room.set(floatsOf(packed)));
  const loss = learner.learn(batch, batch.length * (batch[0].length - 1));
  arena.kernels = kernels;
  return [loss, base64(learner.gradients)];
}
async function train(config, vocabSize, packed, batches, train, workers) {
  const trainer = new Trainer(config, train, vocabSize, workers, script);
  if (packed) trainer.load(floatsOf(packed));
  const steps = [], weights = [];
  for (const { batch, ...changes } of batches) {
    Object.assign(trainer.train, changes);
    steps.push(await trainer.step(batch));
    weights.push(base64(await trainer.weights()));
  }
  for (let rank = 1; rank < workers; rank++) weights.push(base64(await trainer.weights(rank)));
  trainer.close();
  return { steps, weights, shapes: trainer.shapes };
}
function save(config, vocabSize, seed, header, tokens) {
  const shapes = shapesOf(config, vocabSize), engine = new Engine(config, shapes);
  const weights = initialize(config, shapes, seed);
  engine.load(weights, (room) => room.set(weights));
  return [base64(checkpoint(header, shapes, weights)), base64(engine.run(tokens).slice())];
}
"""


@pytest.fixture(scope="module")
def tab(window: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a page from disk whose script trains, with the policy of the page."""
    (tab, events), file = window, tmp_path_factory.mktemp("page") / "training.html"
    script = SCRIPT + ASK
    template = (PARTS / "page.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r"<meta http-equiv=.*>", template)
    policy = policy.replace("{{script_hash}}", content_hash(script))
    file.write_text(f'<meta charset="utf-8">{policy}<body><script>{script}</script>')
    tab.goto(file.as_uri())
    events.clear()
    yield tab
    assert all(event.startswith("blob:") for event in events)


def random_config(random: Random) -> ModelConfig:
    """Return a config drawn from all that the page trains."""
    tied = random.random() < 0.3
    # A norm of two numbers is so steep that float32 has no five digits.
    n_head, head_width = random.choice([(1, 10), (2, 6), (2, 24), (3, 6), (3, 10)])
    return ModelConfig(
        block_size=random.randint(1, 40),
        n_layer=random.choice([1, 2, 3]),
        n_head=n_head,
        n_embd=n_head * head_width,
        positions=random.choice(["learned", "rotary", "none"]),
        ngrams=random.choice([1, 1, 2, 3]),
        activation=random.choice(["gelu", "gelu_tanh", "relu", "relu2"]),
        qk_norm=random.random() < 0.5,
        tie_embeddings=tied,
        bias=random.random() < 0.5,
        head_bias=not tied and random.random() < 0.5,
    )


def random_model(config: ModelConfig, vocab_size: int, seed: int) -> GPT:
    """Return a model all of whose weights affect the loss."""
    torch.manual_seed(seed)
    model = GPT(config, vocab_size)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    return model


def packed(model: GPT) -> str:
    return pack(torch.cat([weight.flatten() for weight in model.state_dict().values()]))


def floats(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<f4")


def random_batches(V: int, steps: int, *shape: int) -> list[Tensor]:
    return [torch.randint(V, shape) for _ in range(steps)]


@pytest.mark.parametrize("seed", range(14))
def test_gradients_match_autograd(tab: Any, seed: int) -> None:
    """The first are the kinds of block that ship; the others are drawn. Some are computed without
    WebAssembly."""
    random = Random(seed)
    shipped = [MODERN, CLASSICAL, replace(MODERN, ngrams=3), replace(MODERN, n_embd=64)]
    config = shipped[seed] if seed < len(shipped) else random_config(random)
    V, T = VOCAB + seed, config.block_size
    model = random_model(config, V, seed)
    batch = torch.randint(V, (3, T + 1))
    plain = seed in (0, 5)
    given = [dataclasses.asdict(config), V, packed(model), batch.tolist(), plain]
    loss, found = tab.evaluate("(a) => gradients(...a)", given)
    model.double()
    expected = next_token_loss(model(batch[:, :-1]), batch[:, 1:])
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    expected.backward()
    at, gradients = 0, floats(found)
    rounding = 1e-7 * np.abs(gradients).max()  # where the gradient is zero, as of a key's bias
    for name, weight in model.named_parameters():
        count = weight.numel()
        own = gradients[at : at + count].reshape(weight.shape)
        at += count
        assert weight.grad is not None
        error, largest = np.abs(own - weight.grad.numpy()).max(), weight.grad.abs().max().item()
        assert error <= 1e-5 * largest + rounding, name
    assert at == len(gradients)


def train(
    tab: Any,
    config: ModelConfig,
    batches: list[dict[str, Any]],
    choices: TrainConfig,
    model: GPT | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Train in the page; a batch may come with changes of the config."""
    given = dataclasses.asdict(config), VOCAB, packed(model) if model else None, batches
    result = tab.evaluate("(a) => train(...a)", [*given, dataclasses.asdict(choices), workers])
    result["weights"] = [floats(each) for each in result["weights"]]
    return dict(result)


@pytest.mark.parametrize(
    ("config", "choices"),
    [
        (MODERN, TrainConfig(schedule="cosine", final_lr_fraction=0.1)),
        (replace(CLASSICAL, ngrams=2), TrainConfig(grad_clip=0.5, weight_decay=1.0)),
        (replace(CLASSICAL, head_bias=True), TrainConfig(optimizer="adamw", beta2=0.9)),
        (
            replace(MODERN, ngrams=2, tie_embeddings=True),
            TrainConfig(optimizer="adamw", learning_rate=0.003, ngram_decay=50.0, grad_clip=0.0),
        ),
    ],
    ids=["relu2 muon", "gelu muon", "gelu adamw", "relu2 adamw"],
)
def test_five_steps_match_train_step(tab: Any, config: ModelConfig, choices: TrainConfig) -> None:
    choices = replace(choices, warmup_steps=2, max_steps=6)
    model = random_model(config, VOCAB, 0)
    batches = random_batches(VOCAB, 5, 4, config.block_size + 1)
    found = train(tab, config, [{"batch": each.tolist()} for each in batches], choices, model)
    assert [*map(tuple, found["shapes"])] == [
        (name, list(weight.shape)) for name, weight in model.state_dict().items()
    ]
    optimizer = make_optimizer(model, choices)
    for step, (batch, result) in enumerate(zip(batches, found["steps"], strict=True)):
        lr_scale = get_lr_scale(step, choices)
        loss, norm = train_step(model, optimizer, batch, choices, lr_scale, 0.0)
        assert result["step"] == step + 1
        assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert result["gradNorm"] == pytest.approx(norm.item(), rel=1e-4)
    at = 0
    for name, weight in model.state_dict().items():
        own = found["weights"][-1][at : at + weight.numel()]
        at += weight.numel()
        # AdamW divides by the size of a gradient, also of one that is zero but for rounding.
        if not name.endswith("attn.key.bias"):
            assert np.abs(own - weight.flatten().numpy()).max() < 3e-4, name


def test_workers_agree(tab: Any) -> None:
    """One worker and several make the same steps up to rounding. Replicas are bitwise identical,
    and so is the same run again."""
    batches = [{"batch": each.tolist()} for each in random_batches(VOCAB, 4, 5, 13)]
    one, two, again, three = (
        train(tab, MODERN, batches, TrainConfig(warmup_steps=2), workers=workers)
        for workers in (1, 2, 2, 3)
    )
    for many in (two, three):
        for single, several in zip(one["steps"], many["steps"], strict=True):
            assert several == pytest.approx(single, rel=1e-5)
        assert not np.array_equal(many["weights"][3], one["weights"][3])  # or nothing was shared
        for replica in many["weights"][4:]:
            assert np.array_equal(replica, many["weights"][3])
    assert again["steps"] == two["steps"]
    assert np.array_equal(again["weights"], two["weights"])
    assert two["steps"][3]["loss"] < two["steps"][0]["loss"]


@pytest.mark.parametrize("workers", [1, 2])
def test_loss_that_is_not_finite_stops(tab: Any, workers: int) -> None:
    """It keeps the last weights with a finite loss, and training can go on from them."""
    high, low = {"muon_learning_rate": 1e30}, {"muon_learning_rate": 0.01}
    batches = random_batches(VOCAB, 4, 4, 13)
    steps = [
        {"batch": batch.tolist(), **changes}
        for batch, changes in zip(batches, [low, high, low, low], strict=True)
    ]
    model = random_model(MODERN, VOCAB, 0)
    choices = TrainConfig(warmup_steps=1, grad_clip=0.0)
    found = train(tab, MODERN, steps, choices, model, workers)
    first, second, third, fourth = found["steps"]
    assert "stopped" not in first.keys() | second.keys()
    assert re.match("at step 3: loss .*, gradient norm ", third["stopped"]) and third["step"] == 3
    assert np.array_equal(found["weights"][2], found["weights"][0])
    assert fourth["step"] == 3 and "stopped" not in fourth and fourth["loss"] < 10


def test_saved_file_is_a_run(tab: Any, tmp_path: Path) -> None:
    """Its logits are those of the engine, from weights as a GPT begins with them."""
    config = replace(CLASSICAL, n_embd=48, zero_init=False, ngrams=2)
    chars = "abcdefghijé"
    header = Header(
        Config(model=config),
        CharTokenizer(chars).to_dict(),
        Corpus("a task", start_token=3),
        Machine("cpu", "a browser", 1, 1, "float32", ""),
        TrainState(7, 1.5, 1.25),
    )
    tokens = torch.randint(len(chars), (1, 12))
    plain = json.loads(json.dumps(dataclasses.asdict(header)))
    given = [dataclasses.asdict(config), len(chars), 5, plain, tokens[0].tolist()]
    file, logits = tab.evaluate("(a) => save(...a)", given)
    (tmp_path / "last.safetensors").write_bytes(base64.b64decode(file))
    saved = open_run(tmp_path)
    assert saved.header == header
    model = saved.model()
    expected = model(tokens)[0].detach().numpy()
    assert np.abs(floats(logits).reshape(expected.shape) - expected).max() < 1e-5
    for name, weight in GPT(config, len(chars)).named_parameters():
        own = model.get_parameter(name)
        tolerance = 4 / (2 * weight.numel()) ** 0.5  # of an estimated standard deviation
        assert own.std(correction=0).item() == pytest.approx(
            weight.std(correction=0).item(), rel=tolerance
        )
        assert abs(own.mean() - weight.mean()) < 0.02 * tolerance * 2
    with pytest.raises(UserError, match=r"holds weights without .*; use --init_from"):
        saved.check_resume(header.corpus, header.config.train, header.machine)


def test_error_in_a_worker_is_heard(tab: Any) -> None:
    call = """(config) => {
      const trainer = new Trainer(config, {}, 5, 2, script);
      const failed = ({ message }) => { trainer.close(); return message; };
      return trainer.step([[1, 2], null]).catch(failed);
    }"""
    assert "null" in tab.evaluate(call, dataclasses.asdict(MODERN))


def test_what_does_not_train_is_one_line(tab: Any) -> None:
    call = """([config, train]) => {
      try { new Trainer(config, train, 5, 1, ""); } catch ({ message }) { return message; }
    }"""
    for config, choices, what in (
        (replace(MODERN, dropout=0.1), TrainConfig(), "dropout"),
        (replace(MODERN, attn_dropout=0.1), TrainConfig(), "dropout"),
        (MODERN, TrainConfig(multi_token=0.5), "multi-token prediction"),
    ):
        given = [dataclasses.asdict(config), dataclasses.asdict(choices)]
        assert tab.evaluate(call, given) == f"the page trains without {what}"


def test_random_numbers_are_uniform_and_repeat(tab: Any) -> None:
    call = """(seed) => { const random = new Random(seed);
      return Array.from({ length: 3000 }, () => random.uniform()); }"""
    first, again, other, far = (tab.evaluate(call, seed) for seed in (1, 1, 2, 2**32 + 1))
    assert first == again and not {*first} & {*other} and not {*first} & {*far}
    counts = np.histogram(first + other + far, bins=10, range=(0, 1))[0]
    assert counts.sum() == 9000 and np.abs(counts - 900).max() < 120
