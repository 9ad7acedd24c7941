"""Our tokenizers as tokenizer.json, which the library `tokenizers` reads, and back."""

import json
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.fields import brief
from data.bpe import BYTE_OF, BPETokenizer, bpe_json, read_merges
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from formats.files import read_bytes, read_json

CHAR_OF = {byte: char for char, byte in BYTE_OF.items()}
# Of a tokenizer.json, what decides about the tokens of a text.
DECIDES = "normalizer", "pre_tokenizer"
MOST = 10**6  # tokens of a model
# Of BPE, what would make others than the merges.
CHANGES = (
    "dropout", "byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix",
)  # fmt: skip


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer as plain data of that form."""
    if isinstance(tokenizer, BPETokenizer):
        return bpe_json(tokenizer.vocabulary, tokenizer.merges)
    if isinstance(tokenizer, ByteTokenizer):
        return bpe_json({CHAR_OF[byte]: byte for byte in range(256)}, [])
    return bpe_json({}, []) | {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"[\s\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Fuse"},
        # No such token is there: a character that is not known is an error.
        "model": {
            "type": "WordLevel",
            "vocab": {char: i for i, char in enumerate(tokenizer.chars)},
            "unk_token": "<unknown>",
        },
    }


def read_tokenizer(folder: Path, V: int) -> Tokenizer:
    """The tokenizer of a folder: tokenizer.json, or GPT-2's older vocab.json and merges.txt.

    Args:
        V: tokens that the model knows; where there are more of them than tokens, as in models
            padded to a round number, the rest are special tokens that no text has.

    Raises:
        UserError: for one that nothing here computes.
    """
    where = folder / "tokenizer.json"
    if where.is_file():
        plain = read_json(where)
        model = plain.get("model")
        if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
            raise UserError(f"{where} has no vocabulary")
    else:
        where = folder / "vocab.json"
        if not where.is_file():
            raise UserError(f"{folder} has no tokenizer: neither tokenizer.json nor vocab.json")
        plain = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
        model = {"type": "BPE", "vocab": read_json(where), "merges": read_lines(folder)}
    added = plain.get("added_tokens") or []
    try:
        special = {token["content"]: token["id"] for token in added}
        tokenizer = make_tokenizer(model, model["vocab"] | special, V)
        if isinstance(tokenizer, BPETokenizer) and not set(special) <= set(tokenizer.special):
            raise ValueError("an added token is one that texts have")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where} is no tokenizer that is known here: {error}") from None
    expected = tokenizer_json(tokenizer)
    for name in DECIDES:
        if simplified(plain.get(name)) != simplified(expected[name]):
            raise UserError(
                f"{where}: its {name} is {brief(plain.get(name))}; known here are characters, "
                f"bytes and GPT-2's sub-words"
            )
    return tokenizer


def make_tokenizer(model: dict[str, Any], vocabulary: dict[str, int], V: int) -> Tokenizer:
    """The tokenizer with that vocabulary.

    Raises:
        ValueError: where there is none.
    """
    if not all(isinstance(t, str) and type(i) is int for t, i in vocabulary.items()):
        raise ValueError("its tokens should be texts, and their ids numbers")
    "".join(vocabulary).encode()  # raises a ValueError where they are no text
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("its tokens are not numbered from 0 on")
    if len(tokens) > V or V > MOST:
        raise ValueError(f"it has {len(tokens)} tokens, and the model knows {V}")
    made: Tokenizer
    match model.get("type", "BPE"):  # GPT-2's own says nothing
        case "WordLevel":
            made = CharTokenizer("".join(tokens))
            known = len(tokens) == V and all(len(token) == 1 for token in tokens)
        case "BPE" if not model.get("merges") and len(tokens) == 256:
            made = ByteTokenizer()
            known = tokens == [CHAR_OF[byte] for byte in range(256)] and V == 256
        case "BPE":
            merges = read_merges(model["merges"])
            ordinary = BPETokenizer(merges).vocab_size
            unused = [f"<|unused {i}|>" for i in range(len(tokens), V)]
            made = BPETokenizer(merges, (*tokens[ordinary:], *unused))
            known = list(made.vocabulary)[: len(tokens)] == tokens
            known &= not any(model.get(name) for name in CHANGES)
        case kind:
            raise ValueError(f"it is a {brief(kind)}")
    if not known:
        raise ValueError("its vocabulary is not that of characters, bytes, or GPT-2's sub-words")
    return made


def simplified(part: Any) -> Any:
    """Part of a tokenizer.json without what makes no difference to the tokens."""
    if isinstance(part, dict):
        part = {name: value for name, value in part.items() if name != "trim_offsets"}
        if part.get("type") == "ByteLevel":
            part = {"use_regex": True} | part
    return part


def read_lines(folder: Path) -> list[str]:
    """The merges of a merges.txt."""
    path = folder / "merges.txt"
    if not path.is_file():
        raise UserError(f"{folder} has a vocab.json, but no merges.txt beside it")
    try:
        lines = read_bytes(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text: {error}") from None
    return [line for line in lines if line and not line.startswith("#version")]


def tokenizer_config(block_size: int) -> bytes:
    """The tokenizer_config.json that lets transformers open any tokenizer.json."""
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": block_size}
    return json.dumps(plain | {"clean_up_tokenization_spaces": False}, indent=1).encode()
