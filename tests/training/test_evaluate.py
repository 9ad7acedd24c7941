"""The evaluation matches its definition."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from configs.config import DataConfig
from data.batches import Batches, task_batches, text_batches
from data.corpus import Corpus, Text
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from model.gpt import GPT
from tests.training.test_step import SMALL, batch_of, make, nats
from training.evaluate import Evaluation, evaluate
from training.machine import Processes


def split() -> list[Tensor]:
    """Return batches of unequal size and length, so that the mean of batch means is wrong."""
    return [batch_of(3), batch_of(1, 7, 2), batch_of(2, 4, 3), batch_of(1, 2, 4)]


def text_of(tokenizer: Tokenizer) -> Batches:
    tokens = np.zeros(99, dtype=np.uint8)
    text = Text(tokens, tokenizer, Corpus("zeros", 0), Path())
    return text_batches(text, DataConfig(), 8, 0)


def test_evaluation_is_the_token_mean() -> None:
    model = make()
    result = evaluate(model, iter(split()), text_of(CharTokenizer("abcdefg")), Processes())
    assert result
    losses = [nats(model, row[None]) for batch in split() for row in batch]
    assert result.loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert result.bits_per_char == pytest.approx(result.loss / math.log(2))
    assert result.accuracy is None
    assert all(p.grad is None for p in model.parameters())


def test_accuracy_is_the_fraction_of_answers_that_have_the_highest_logit() -> None:
    """The answers are the closing brackets. The last batch is smaller."""
    model, task = make(), task_batches(DataConfig(source="brackets", task_kinds=3), 6, 0)
    batches = [*task.split("validation", 20, 50 * 6)]
    result = evaluate(model, iter(batches), task, Processes())
    right = [
        model(row[None, :t])[0, -1].argmax() == row[t]
        for row in torch.cat(batches)
        for t in range(1, 7)
        if row[t] >= 3
    ]
    assert 0 < sum(right) < len(right)
    assert result and result.accuracy == sum(right) / len(right)


def test_bytes_have_two_units_and_may_have_no_character() -> None:
    bytes_of_none, text = iter([torch.full((1, 5), 0x80)]), text_of(ByteTokenizer())
    result = evaluate(GPT(SMALL, 256), bytes_of_none, text, Processes())
    assert result and math.isfinite(result.bits_per_char)
    loss = Evaluation(nats=6 * math.log(2), tokens=3, characters=2, surprisal=torch.empty(0))
    assert loss.in_units("byte") == "1.3863 nats/byte  2.000 bits/byte  3.000 bits/char"
