"""Helpers: small GPT-2 models of transformers, their tokenizers, and texts to tokenize."""

import json
import os
from pathlib import Path
from typing import Any

import torch

from formats.imported import transformers
from model.gpt import GPT
from tests.data.test_tokenizer import LINES, ODD

TEXT = LINES * 9
CHARS = "".join(sorted(set("".join(ODD) + "the man")))
# Invalid and incomplete UTF-8, also next to valid characters.
BAD_UTF8 = [b"\xff", b"a\xc3", b"\xe6\x97", b"\xe6\x97x\xf0\x9f\x98", b"\x80\x80a", b"\xed\xa0\x80"]

os.environ["HF_HUB_OFFLINE"] = "1"
SIZES = {"n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 2, "bos_token_id": 299}


def load(folder: Path) -> Any:
    """Load the model of a folder with transformers."""
    return transformers().AutoModelForCausalLM.from_pretrained(folder).float().eval()


@torch.no_grad()
def difference(model: GPT, reference: Any) -> float:
    """Return the largest difference of the logits, relative to the largest logit."""
    V, T = model.token_embedding.num_embeddings, model.config.block_size
    tokens_BT = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(7))
    logits_BTV = model(tokens_BT)
    return float((logits_BTV - reference(tokens_BT).logits).abs().max() / logits_BTV.abs().max())


def make_gpt2(**fields: Any) -> Any:
    """Return a small GPT-2 of transformers with all weights random, biases and norms included."""
    config = transformers().GPT2Config(**{"vocab_size": 300} | SIZES | fields)
    torch.manual_seed(5)
    model = transformers().AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    return model


def save_tokenizer(folder: Path, hub_format: bool = False) -> None:
    """Save a tokenizer of GPT-2's kind, trained by `tokenizers` on another text.

    Args:
        hub_format: use the older format of GPT-2 on the Hugging Face Hub.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=299, initial_alphabet=alphabet, show_progress=False)
    encoder.train_from_iterator([TEXT[::-1] + TEXT.upper()], trainer)
    encoder.add_special_tokens(["<|endoftext|>"])
    plain = json.loads(encoder.to_str())
    if hub_format:
        model = plain["model"]
        model["vocab"]["<|endoftext|>"] = 299
        model["merges"] = [" ".join(pair) for pair in model["merges"]]
        model |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
        del model["type"], model["byte_fallback"], model["ignore_merges"]
        del plain["pre_tokenizer"]["use_regex"]
    (folder / "tokenizer.json").write_text(json.dumps(plain))


def edit_json(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; `...` removes a field."""
    plain = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: v for name, v in plain.items() if v is not ...}))
