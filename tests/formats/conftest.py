"""A model of somebody else."""

from pathlib import Path

import pytest

from tests.formats.models import make_theirs, save_tokenizer

SIZES = {"n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 2, "bos_token_id": 299}


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 as the library saves it, with its tokenizer."""
    folder = tmp_path_factory.mktemp("theirs") / "gpt2"
    make_theirs("GPT2", **SIZES).save_pretrained(folder)
    save_tokenizer(folder)
    return folder
