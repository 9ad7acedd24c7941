"""What the playground measures of a model, against lens/."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from configs.config import DataConfig
from data.tasks import TASKS
from lens.measure import mean_loss, mean_outputs, score_heads, score_match, token_losses
from lens.metrics import uniform_scores
from page.playground import playground_data
from tests.lens.models import CLASSICAL, MODERN
from tests.page.test_training import packed, random_model

ASK = """([data, config, shapes, packed, usual]) => {
  const task = new TASKS[data.source](data, config.block_size, usual);
  const measure = new Measure(task, config, shapes);
  const result = [...measure.of(floatsOf(packed))].at(-1);
  const { sequences, trained, repeats, scores } = measure;
  const uniform = Object.fromEntries(scores.map(({ key, uniform }) => [key, uniform]));
  const headMeans = [...result.headMeans];
  return { ...result, headMeans, sequences, trained, repeats, uniform };
}"""


@pytest.mark.parametrize(
    ("T", "settings", "config"),
    [
        (24, {"source": "brackets"}, CLASSICAL),
        (30, {"source": "addition", "task_length": 1, "task_held_out": 0.3}, MODERN),
    ],
    ids=["brackets", "addition"],
)
def test_measurements_are_those_of_lens(
    engine: Any, T: int, settings: dict[str, Any], config: Any
) -> None:
    data = DataConfig(**settings)
    task, config = TASKS[data.source](data, T), replace(config, block_size=T)
    model = random_model(config, len(task.vocab), 1)
    shapes = [[name, list(weight.shape)] for name, weight in model.state_dict().items()]
    given = [dataclasses.asdict(data), dataclasses.asdict(config), shapes, packed(model)]
    given.append(playground_data()["usual"][data.source])
    found = engine.evaluate(ASK, given)

    sequences, trained, repeats = (
        torch.tensor(found[name]) for name in ("sequences", "trained", "repeats")
    )
    text, period = sequences[:, :-1], repeats.size(1) // 2
    match = torch.from_numpy(task.match(text.numpy()))
    some = match.any((1, 2))
    scores = score_heads(model, text, repeats=False) | score_heads(model, repeats, repeats=True)
    scores |= score_match(model, text[some], match[some][:, None])
    uniform = {
        score.key: value for score, value in uniform_scores(T, period, match[some][:, None]).items()
    }
    assert "weight_on_match" in found["scores"] and "induction" in found["scores"]
    for key, values in found["scores"].items():
        assert np.allclose(values, scores[key].flatten(), atol=1e-5), key
        assert found["uniform"][key] == pytest.approx(uniform[key], abs=1e-5), key
    assert found["lens_loss"][-1] == pytest.approx(mean_loss(model, sequences), abs=1e-5)
    assert np.allclose(found["headMeans"], mean_outputs(model, sequences).flatten(), atol=1e-4)
    losses = token_losses(model, repeats)
    first, second = losses[:, : period - 1].mean(), losses[:, period:].mean()
    assert found["copying"] == {
        "period": period,
        "first": pytest.approx(float(first), abs=1e-5),
        "second": pytest.approx(float(second), abs=1e-5),
    }
    for split, share in zip((sequences, trained), found["accuracy"], strict=True):
        if len(split):
            right = model(split[:, :-1]).argmax(-1) == split[:, 1:]
            known = torch.from_numpy(task.answers(split.numpy()))[:, 1:]
            assert share == pytest.approx(right[known].float().mean().item(), abs=1e-6)
    pairs = getattr(task, "pairs", None)
    assert bool(len(trained)) == (pairs is not None)
    if pairs:
        for split, own in zip((trained, sequences), pairs, strict=True):
            sums_BN = 10 * split[:, 0::7] + split[:, 2::7]  # a+b=cc, the last one cut
            assert {*sums_BN.flatten().tolist()} <= {*own.tolist()}
