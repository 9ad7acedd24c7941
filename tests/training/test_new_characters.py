"""A run that starts from another one gets the characters that its vocabulary lacks."""

from pathlib import Path
from typing import Any

import pytest
import torch

import sample
import train
from tests.conftest import make_run
from training.checkpoint import open_run

STILL = ["--train.learning_rate=0", "--train.muon_learning_rate=0", "--train.max_steps=1"]
STILL += ["--train.sample_tokens=0", "--train.tensorboard=false"]
HEADS = [{}, {"tie_embeddings": True}, {"head_bias": True}]


@pytest.fixture
def texts(workplace: Path) -> None:
    Path("old.txt").write_text("hat and cat\n" * 40)
    Path("new.txt").write_text("The hat, été\n" * 40)


@pytest.mark.parametrize("choices", HEADS, ids=str)
def test_new_characters_get_rows_and_old_ones_keep_theirs(
    texts: None, choices: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Learning rates of 0 keep the weights."""
    old = open_run(make_run(Path("runs/old"), source="old.txt", zero_init=False, **choices), "last")
    best = open_run("old")
    words = ["--init_from=old", "--run=new", "--data.source=new.txt", *STILL]
    assert train.main(words) == 0
    assert "new characters: ',' 'T' 'é'\n" in capsys.readouterr().out
    saved, V = open_run("new"), old.tokenizer.vocab_size
    assert saved.tokenizer.labels == [*old.tokenizer.labels, ",", "T", "é"]
    assert saved.tokenizer.encode("hat").tolist() == old.tokenizer.encode("hat").tolist()
    rows = 0
    for name, weight in best.tensors.items():
        if name.startswith("model."):
            now = saved.tensors[name]
            assert torch.equal(now[: len(weight)], weight), name
            if len(now) > len(weight):
                rows += 1
                assert len(weight) == V and len(now) == V + 3
                assert now.dim() == 1 or 0.001 < float(now[V:].std()) < 0.1  # as at the start
    assert rows == 1 + (not choices.get("tie_embeddings")) + choices.get("head_bias", False)

    assert train.main(["--resume=new", "--train.max_steps=2"]) == 0
    assert sample.main(["new", "--prompt=Té", "--max_new_tokens=3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Té")
    # The other way round, nothing is new: the vocabulary stays, and so do the ids.
    words = ["--init_from=new", "--run=back", "--data.source=old.txt", *STILL]
    assert train.main(words) == 0
    assert "new characters" not in capsys.readouterr().out
    assert open_run("back").tokenizer == saved.tokenizer


def test_ngram_embeddings_cannot_grow(texts: None, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/old"), ngrams=2)
    assert train.main(["--init_from=old", "--run=new", "--data.source=new.txt", *STILL]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: a model with n-gram embeddings cannot get new characters"
    )
    assert not Path("runs/new").exists()
