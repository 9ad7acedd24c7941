"""Fixtures: the library transformers, and a GPT-2 saved by it."""

from pathlib import Path

import pytest

from tests.formats.models import make_gpt2, save_tokenizer


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    """Skip all of these tests if transformers is not installed."""
    pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small GPT-2 saved by transformers, with its tokenizer."""
    folder = tmp_path_factory.mktemp("theirs") / "gpt2"
    make_gpt2().save_pretrained(folder)
    save_tokenizer(folder)
    return folder
