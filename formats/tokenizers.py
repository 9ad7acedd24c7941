"""Conversion to and from tokenizers of the library `tokenizers`, for tokenizer.json."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from common.errors import UserError, as_user_error
from data.tokenizer import (
    BYTE_OF,
    WORD,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    byte_level_bpe,
)


def encoder_of(tokenizer: Tokenizer) -> Any:
    """Return the library's tokenizer that splits texts into the same tokens.

    Raises:
        UserError: for a kind of tokens that is not supported.
    """
    if isinstance(tokenizer, CharTokenizer | WordTokenizer):
        split, decoder = tokenizers.pre_tokenizers.Split, None  # which joins words by spaces
        if isinstance(tokenizer, CharTokenizer):
            texts: Iterable[str] = tokenizer.chars
            each = split(tokenizers.Regex(r"[\s\S]"), "isolated")
            decoder = tokenizers.decoders.Fuse()
        else:
            texts = tokenizer.words
            each = split(tokenizers.Regex(WORD.pattern), "removed", invert=True)
        ids = {text: i for i, text in enumerate(texts)}
        # The vocabulary does not have this token, so an unknown character is an error.
        encoder = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unknown>"))
        encoder.pre_tokenizer, encoder.decoder = each, decoder
        return encoder
    if isinstance(tokenizer, BPETokenizer):
        encoder = byte_level_bpe(tokenizer.vocabulary, tokenizer.pairs, tokenizer.special)
    elif isinstance(tokenizer, ByteTokenizer):
        encoder = byte_level_bpe(BYTE_OF, [])
    else:
        raise UserError(f"formats/tokenizers.py lacks {tokenizer.kind}; add it")
    encoder.decoder = tokenizers.decoders.ByteLevel()
    return encoder


def read_tokenizer(folder: Path, V: int) -> Tokenizer:
    """Read the tokenizer.json of a folder.

    Args:
        V: rows of the model's embedding. If there are more rows than tokens, as in models padded to
            a round number, no text has the others.

    Raises:
        UserError: if it is damaged or unsupported.
    """
    where = folder / "tokenizer.json"
    content = where.read_bytes()
    with as_user_error(where):
        encoder = tokenizers.Tokenizer.from_buffer(content)
    with as_user_error(where, "is not supported"):
        return tokenizer_of(encoder, V)


def tokenizer_of(encoder: Any, V: int) -> Tokenizer:
    """Return the `Tokenizer` that splits texts into the same tokens as the library's tokenizer.

    Raises:
        ValueError: if there is none.
    """
    ids: dict[str, int] = encoder.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    model = json.loads(encoder.to_str())["model"]
    made: Tokenizer
    if model["type"] == "WordLevel":
        made = CharTokenizer("".join(tokens))
    elif model.get("merges"):
        merges = "\n".join(map(" ".join, model["merges"]))
        ordinary = BPETokenizer(merges).vocab_size
        made = BPETokenizer(merges, tuple(tokens[ordinary:]), max(0, V - len(tokens)))
    else:
        made = ByteTokenizer()
    ours = encoder_of(made)
    added = {token.content: token for token in encoder.get_added_tokens_decoder().values()}
    special = getattr(made, "special", ())
    for content in [*added, *special]:
        token = added.get(content)
        if token is None or content not in special or not is_plain(token, added.values()):
            raise ValueError(f"the added token {content!r} is not supported")
    same = ids.items() <= ours.get_vocab().items()
    if not same or what_decides(encoder) != what_decides(ours) or made.vocab_size != V:
        raise ValueError(f"its tokens must be {V} characters, bytes, or subwords as in GPT-2")
    return made


def is_plain(token: Any, added: Iterable[Any]) -> bool:
    """Return whether an added token is found wherever a text has it, but in a longer added token.

    The library finds the tokens that are not `normalized` first, which matters if they overlap.
    """
    if token.lstrip or token.rstrip or token.single_word:
        return False
    others = [other.content for other in added if other.normalized and not token.normalized]
    return not any(overlap(token.content, other) for other in others)


def overlap(one: str, other: str) -> bool:
    """Return whether a text can have two tokens that share characters."""
    ends = range(1, min(len(one), len(other)) + 1)
    meet = any(one[-n:] == other[:n] or one[:n] == other[-n:] for n in ends)
    return meet or one in other or other in one


def what_decides(encoder: Any) -> dict[str, Any]:
    """Return the settings other than the vocabulary that determine how a text is split."""
    plain = json.loads(encoder.to_str())
    model = {name: value for name, value in plain["model"].items() if value}
    parts = {name: plain[name] for name in ("normalizer", "pre_tokenizer")}
    return parts | {"model": model | {"vocab": None, "unk_token": None}}
