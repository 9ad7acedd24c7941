"""sample.py generates what was asked for: each option against the same text drawn directly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sample
from configs.load import fields_of
from data.tokenizer import load_tokenizer
from model.generate import generate
from model.gpt import GPT
from run.checkpoint import load_checkpoint, load_weights, save_checkpoint
from tests.conftest import make_run

CHARS = "\n abcdefghij日é"
# Another value of each option than its default, and one that goes with the others below.
OTHER: dict[str, Any] = {
    "prompt": "abc 日 déaf",
    "num_samples": 3,
    "max_new_tokens": 31,
    "temperature": 0.37,
    "top_k": 3,
    "top_p": 0.6,
    "min_p": 0.3,
    "seed": 7,
    "checkpoint": "last",
    "device": "cpu",
}
CHANGES: list[dict[str, Any]] = [
    {},
    *({name: value} for name, value in OTHER.items()),
    {"temperature": 0, "num_samples": 2},
    {"top_k": 10**6},
    {"top_k": 5, "top_p": 0.8, "min_p": 0.1, "num_samples": 2, "prompt": "日"},
    OTHER,
]
IDS = [" ".join(changes) or "defaults" for changes in CHANGES]


@pytest.fixture
def run(workplace: Path) -> Path:
    return make_run(workplace / "runs" / "a", CHARS)


def expected(run: Path, changes: dict[str, Any]) -> str:
    """What sample.py should print: the model as it was saved, its tokens decoded at once."""
    o: dict[str, Any] = {"prompt": "", "num_samples": 1, "max_new_tokens": 500, "temperature": 0.8}
    o |= {"seed": 1337, "checkpoint": "best"} | changes
    path = run / f"{o['checkpoint']}.safetensors"
    header, tensors = load_checkpoint(path)
    tokenizer = load_tokenizer(header.tokenizer)
    model = GPT(header.config.model, tokenizer.vocab_size)
    load_weights(model, tensors, path)
    prompt = tokenizer.encode(o["prompt"]).tolist() or [header.corpus["start_token"]]
    drawn = generate(
        model,
        torch.tensor([prompt] * o["num_samples"]),
        o["max_new_tokens"],
        **{key: o[key] for key in ("temperature", "top_k", "top_p", "min_p") if key in o},
        generator=torch.Generator().manual_seed(o["seed"]),
    )
    texts = torch.stack(list(drawn), dim=1).tolist()
    rule = "-" * 80 + "\n"
    return rule.join(f"{o['prompt']}{tokenizer.decode(ids)}\n" for ids in texts)


@pytest.mark.parametrize(
    ("chars", "changes"),
    [*((CHARS, changes) for changes in CHANGES), (None, {"prompt": "日"}), (None, OTHER)],
    ids=[*IDS, "a prompt of bytes", "all with bytes"],
)
def test_each_option_generates_what_it_says(
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    chars: str | None,
    changes: dict[str, Any],
) -> None:
    run = make_run(workplace / "runs" / "a", chars)
    given = {"max_new_tokens": 25} | changes if changes else {}
    assert sample.main(["a", *(f"--{name}={value}" for name, value in given.items())]) == 0
    out, err = capsys.readouterr()
    assert out == expected(run, given)
    if changes.keys() - {"device"} and changes != {"top_k": 10**6}:
        assert out != expected(run, {"max_new_tokens": 25}), "the option changes nothing"
    which, step = ("last", 3) if changes.get("checkpoint") == "last" else ("best", 2)
    assert f"{which}.safetensors, step {step}, validation loss 2.5000, on cpu" in err


def test_no_option_is_left_out() -> None:
    assert OTHER.keys() == fields_of(sample.Options).keys()


def test_the_device_is_the_one_that_is_asked_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def pick(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(sample, "pick_device", pick)
    for argv in (["--device=auto"], ["--device=mps"], []):
        assert sample.main([*argv, "--max_new_tokens=1"]) == 0
    assert asked == ["auto", "mps", "auto"]


def test_without_a_c_compiler_it_says_so(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "compiled", lambda: "no C compiler (cc)")
    assert sample.main(["--max_new_tokens=1"]) == 0
    assert "slower: no C compiler (cc)\n" in capsys.readouterr().err


def test_text_appears_as_it_is_drawn(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    appeared: list[str] = []

    def watched(*args: Any, **options: Any) -> Iterator[torch.Tensor]:
        for token_B in generate(*args, **options):
            appeared.append(capsys.readouterr().out)
            yield token_B

    whole = expected(run, {"prompt": "ab", "max_new_tokens": 9})
    monkeypatch.setattr(sample, "generate", watched)
    assert sample.main(["--prompt=ab", "--max_new_tokens=9"]) == 0
    assert appeared == ["ab", *whole[2:-2]]


def test_one_that_cannot_say_where_to_start_asks_for_a_prompt(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, tensors = load_checkpoint(run / "best.safetensors")
    header.corpus["start_token"] = len(CHARS)
    save_checkpoint(run / "best.safetensors", tensors, header)
    assert sample.main([]) == 2
    assert "does not say where to start; give a --prompt" in capsys.readouterr().err
    assert sample.main(["--prompt=a", "--max_new_tokens=3"]) == 0


BAD = [
    (["--prompt="], "--prompt is empty; leave it out to start from a newline"),
    (["--prompt", "xxé日"], "the model has never seen 'x'; it knows 14 characters"),
    (["--prompt", "a\x1b[31m"], r"never seen '\x1b' '1' '3' '[' 'm'; it"),
    (["--num_samples=99999999999"], "a batch of 99999999999 with --model.block_size 12"),
    (["absent"], "there is no run absent; runs/ has 1, among them a"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda value: ascii(value)[:30])
def test_a_mistake_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert sample.main(argv) == 2
    out, err = capsys.readouterr()
    assert message in err and out == ""
    assert err.splitlines()[-1].startswith("error: ")
