"""A model from elsewhere."""

from pathlib import Path

import pytest

from tests.formats.models import make_theirs, save_tokenizer


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 as the library saves it, with its tokenizer."""
    folder = tmp_path_factory.mktemp("theirs") / "gpt2"
    make_theirs().save_pretrained(folder)
    save_tokenizer(folder)
    return folder
