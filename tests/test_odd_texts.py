"""Unusual texts can be tokenized, trained on, sampled and studied."""

from pathlib import Path

import pytest

import sample
import study
import train
from tests.conftest import DEBUG
from training.checkpoint import open_run

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one emoji made of three joined by U+200D
TEXTS = {
    "a million characters on one line": "abcde " * 166_667,
    "one distinct character": "a" * 1000,
    "joined, from right to left, controls, \\r\\n": f"\ufeff\0{FAMILY} e\u0301 שלום\x1b\x7f\r\n"
    * 60,
    "50,000 distinct characters": "".join(map(chr, [*range(0x20, 0xD800)][:50_000])),
}


@pytest.mark.parametrize("name", TEXTS)
def test_unusual_text_works(workplace: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = TEXTS[name]
    Path("odd.txt").write_bytes(text.encode())
    flags = ["--data.source=odd.txt", "--train.max_steps=1", "--train.eval_tokens=2000"]
    flags += ["--model.n_embd=8"]  # larger models are slow with a vocabulary of 50,000
    assert train.main([DEBUG, *flags, "--train.sample_tokens=5", "--run=odd"]) == 0
    saved = open_run(Path("runs/odd"))
    assert set(saved.tokenizer.labels) == set(text) - {"\r"}  # newlines are \\n
    capsys.readouterr()
    prompt = text[1:3]  # one has a NUL, which no shell could pass
    assert sample.main([f"--prompt={prompt}", "--max_new_tokens=9"]) == 0
    written = capsys.readouterr().out
    assert written.startswith(prompt)
    assert len(written) == len(prompt) + 9 + 1 and set(written) <= set(text + "\n")
    assert study.main(["trace", f"--prompt={prompt}"]) == 0
    assert all(char.isprintable() or char == "\n" for char in capsys.readouterr().out)
