"""The output of sample.py with each option equals text that is sampled directly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sample
import train
from configs.config import DataConfig
from configs.load import fields_of
from data.corpus import load_text
from model.generate import Sampling, generate
from tests.conftest import make_run
from tests.model.test_decode import NO_CC
from training.checkpoint import open_run

CHARS = "\n abcdefghij日é"
# A value other than the default for each option.
OTHER = {
    "prompt": "abc 日 déaf",
    "num_samples": 3,
    "max_new_tokens": 31,
    "temperature": 0.37,
    "top_k": 3,
    "top_p": 0.6,
    "seed": 7,
    "checkpoint": "last",
    "device": "cpu",
    "dtype": "bfloat16",
}


def expected(run: Path, **changes: Any) -> str:
    """Return the expected output: samples of the saved model, each decoded at once."""
    sampling = {name: changes.pop(name) for name in fields_of(Sampling) if name in changes}
    options = sample.Options(**changes)
    saved = open_run(run, options.checkpoint)
    model = saved.model()
    if options.dtype == "bfloat16" and not NO_CC:
        model = model.bfloat16().float()
    prompt = saved.tokenizer.encode(options.prompt).tolist() or [saved.start_token]
    sampled = generate(
        model,
        torch.tensor([prompt] * options.num_samples),
        options.max_new_tokens,
        Sampling(**sampling),
        torch.Generator().manual_seed(options.seed),
    )
    texts = torch.stack(list(sampled), dim=1).tolist()
    rule = "-" * 80 + "\n"
    return rule.join(f"{options.prompt}{saved.tokenizer.decode(ids)}\n" for ids in texts)


@pytest.mark.parametrize("chars", [CHARS, None], ids=["characters", "bytes"])
def test_each_option_matches_direct_sampling(
    workplace: Path, capsys: pytest.CaptureFixture[str], chars: str | None
) -> None:
    assert OTHER.keys() == fields_of(sample.Options).keys() | fields_of(Sampling).keys()
    run = make_run(workplace / "runs" / "a", chars)
    plain = expected(run, max_new_tokens=25)
    for changes in ({}, OTHER, *({name: value} for name, value in OTHER.items())):
        given = {"max_new_tokens": 25} | changes
        assert sample.main(["a", *(f"--{name}={value}" for name, value in given.items())]) == 0
        out, err = capsys.readouterr()
        assert out == expected(run, **given)
        assert (out != plain) == bool(changes.keys() - {"device", "dtype"}), changes
        unit = "char" if chars else "byte"
        assert f"validation loss 2.5000 nats/{unit}" in err and ", on cpu\n" in err


def test_text_is_printed_as_it_is_sampled(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(workplace / "runs" / "a", CHARS)
    appeared = []

    def watched(*args: Any) -> Iterator[torch.Tensor]:
        for token_B in generate(*args):
            appeared.append(capsys.readouterr().out)
            yield token_B

    whole = expected(run, prompt="ab", max_new_tokens=9)
    monkeypatch.setattr(sample, "generate", watched)
    assert sample.main(["--prompt=ab", "--max_new_tokens=9"]) == 0
    assert appeared == ["ab", *whole[2:-2]]


def test_the_longest_copy_of_the_training_text_is_named_if_the_text_is_in_the_cache(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last tenth of the text is for validation. A token is a byte, and ü has two."""
    whole = "one two three four fünf six seven eight nine ten eleven twelve\n" * 10 + "zzz" * 30
    Path("text").write_text(whole)
    words = "--data.source=text --train.max_steps=1 --model.n_embd=8 --model.n_head=1"
    words += " --data.tokenizer=byte --model.block_size=16 --train.tensorboard=false --run=a"
    assert train.main(words.split()) == 0
    tokenizer = open_run("a").tokenizer

    def about(sampled: str) -> str:
        tokens = [torch.tensor([token]) for token in tokenizer.encode(sampled).tolist()]
        monkeypatch.setattr(sample, "generate", lambda *args: iter(tokens))
        capsys.readouterr()
        assert sample.main(["a", "--prompt=one"]) == 0
        return capsys.readouterr().err

    found = "longest copy of the training text: 14 characters, ' four fünf six'\n"
    unknown = "no longest copy: the training text has changed, or is not cached\n"
    assert about("zzzz four fünf sixfour fünfff").endswith(found)
    Path("text").write_text(whole + "x")  # not the text of the run, even if it is in the cache
    assert about("two three").endswith(unknown)
    load_text(DataConfig(source="text", tokenizer="byte"))
    assert about("two three").endswith(unknown)
    Path("text").unlink()
    assert about("two three").endswith(unknown)
