"""The table of `study.py evaluate`, against losses of whole splits that are computed directly."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import study
from configs.config import DataConfig
from data.batches import open_batches
from lens.ngram_model import mixed_losses, ngrams_of
from tests.conftest import make_run
from tests.lens.test_tasks import tables
from training.checkpoint import load_checkpoint, open_run, save_checkpoint


def run_on(data: DataConfig, **choices: Any) -> Path:
    """Make a run of random weights with this data config."""
    run = make_run(Path("runs/a"), **choices)
    for which in ("best", "last"):
        header, tensors = load_checkpoint(run / f"{which}.safetensors")
        header = replace(header, config=replace(header.config, data=data))
        save_checkpoint(run / f"{which}.safetensors", tensors, header)
    return run


@torch.no_grad()
def test_losses_of_the_held_out_splits(workplace: Path) -> None:
    """Of the run, of n-grams, and of both mixed; the text is another one on request."""
    Path("text.txt").write_text("a tale of an owl, été, and of a cat\n" * 60)
    data = DataConfig(source="text.txt", tokenizer="byte", test_fraction=0.2, val_fraction=0.15)
    run_on(data, chars=None)
    Path("other.txt").write_text("nothing of the kind at all, as it were\n" * 40)
    for source, which in (("text.txt", "best"), ("other.txt", "last")):
        saved = open_run("a", which)
        batches = open_batches(DataConfig(**vars(data) | {"source": source}), 12, 0)
        (table,) = tables("evaluate", f"--source={source}", f"--checkpoint={which}")
        assert table[0] == ["split", "by", "nats/byte", "bits/char", "bits/byte"]
        expected, order = [], len(ngrams_of(batches).orders)
        for name, tokens in ((name, batches.tokens[name]) for name in ("validation", "test")):
            losses = []
            for place in range(0, len(tokens) - 1, 12):
                part = torch.from_numpy(tokens[place : place + 13].astype(int))
                log_p = saved.model()(part[None, :-1])[0].log_softmax(-1)
                losses.append(-log_p.gather(-1, part[1:, None])[:, 0])
            one = torch.cat(losses).double().numpy()
            counted = ngrams_of(batches).read(tokens)[0][1:]
            characters = len(bytes(tokens[1:].tolist()).decode(errors="ignore"))
            for by, nats in {
                "model": one,
                f"{order}-gram": counted,
                "both mixed": mixed_losses(one, counted),
            }.items():
                bits = nats.sum() / math.log(2)
                numbers = [nats.mean(), bits / characters, bits / len(nats)]
                expected.append([name, by, *(pytest.approx(n, rel=1e-5) for n in numbers)])
        assert table[1:] == expected


@pytest.mark.parametrize("encoding", ["utf-8", "windows-1252"])
def test_each_byte_of_a_text_that_is_not_utf8_counts_as_a_character(
    workplace: Path, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    """In Windows-1252, quotation marks have the continuation bytes of UTF-8."""
    Path("text.txt").write_text("“a tale” of an owl, été\n" * 60, encoding)
    run_on(DataConfig(source="text.txt", tokenizer="byte"), chars=None)
    (table,) = tables("evaluate", "--source=text.txt")
    said = "(a vocabulary of 256; the text is not UTF-8, so each byte counts as a character), "
    assert (said in capsys.readouterr().out) == (encoding == "windows-1252")
    for _, _, _, per_char, per_byte in table[1:]:
        assert (per_char == per_byte) == (encoding == "windows-1252")


def test_task_has_an_accuracy_also_of_training_sequences(workplace: Path) -> None:
    """There are no n-grams. A fraction of 0 is one, too."""
    data = DataConfig(source="flipflop", task_ignored=0.9)
    batches = open_batches(data, 12, 0)
    run_on(data, tokenizer=batches.tokenizer)
    (_, *losses), (_, *accuracies) = found = tables("evaluate")
    assert found != tables("evaluate", "--task_ignored=0")
    assert [row[:2] for row in losses] == [["validation", "model"], ["training", "model"]]
    assert [name for name, _ in accuracies] == ["validation", "training"]


def test_loss_that_is_not_finite_is_an_error(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The logits are finite in float32, but not their losses."""
    Path("text.txt").write_text("abc\n" * 200)
    run = run_on(DataConfig(source="text.txt"), chars="\nabc")
    header, tensors = load_checkpoint(run / "best.safetensors")
    tensors["model.head.weight"].sign_().mul_(1e38)
    save_checkpoint(run / "best.safetensors", tensors, header)
    assert study.main(["evaluate", "a", "--source=text.txt"]) == 2
    assert "error: the validation loss is " in capsys.readouterr().err
