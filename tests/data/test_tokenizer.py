"""Text and token ids are two forms of the same thing."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, load_tokenizer

texts = st.text(st.characters(codec="utf-8"), min_size=1)


@given(texts)
def test_any_text_round_trips(text: str) -> None:
    chars = "".join(sorted(set(text)))
    tokenizers: list[Tokenizer] = [CharTokenizer(chars), ByteTokenizer()]
    expected = [[chars.index(char) for char in text], list(text.encode())]
    for tokenizer, ids in zip(tokenizers, expected, strict=True):
        assert tokenizer.encode(text).tolist() == ids
        assert tokenizer.decode(ids) == "".join(tokenizer.stream(ids)) == text
        assert tokenizer.count_characters(tokenizer.encode(text)) == len(text)
        assert load_tokenizer(json.loads(json.dumps(tokenizer.to_dict()))) == tokenizer
        assert tokenizer.vocab_size == (256 if tokenizer == ByteTokenizer() else len(chars))


@given(st.binary())
def test_any_bytes_decode_alike_at_once_and_one_by_one(content: bytes) -> None:
    expected = content.decode("utf-8", "replace")
    assert ByteTokenizer().decode(content) == "".join(ByteTokenizer().stream(content)) == expected


def test_a_character_is_streamed_as_soon_as_it_is_complete() -> None:
    assert list(ByteTokenizer().stream("aé".encode())) == ["a", "", "é", ""]


def test_ids_are_of_the_smallest_type_that_holds_them() -> None:
    for V, dtype in ((1, "uint8"), (256, "uint8"), (257, "uint16"), (65537, "uint32")):
        tokenizer = CharTokenizer("".join(map(chr, range(0x10000, 0x10000 + V))))
        ids = tokenizer.encode(tokenizer.chars)
        assert ids.dtype == dtype and ids.tolist() == list(range(V))
        with pytest.raises(UserError):
            tokenizer.encode("\uffff")


def test_unknown_characters_are_listed() -> None:
    with pytest.raises(UserError, match=r"never seen '\\n' 'é' '😀'; it knows 2 characters"):
        CharTokenizer("ab").encode("a😀b\né😀")
    with pytest.raises(UserError, match="'v' and 6 more;"):
        CharTokenizer("ab").encode("cdefghijklmnopqrstuvwxyz{}")
    with pytest.raises(UserError, match="udc80"):
        CharTokenizer("ab").encode("a\udc80")  # how Python reads an argument that is not UTF-8
    assert np.array_equal(ByteTokenizer().encode("a\udc80"), [0x61, 0x80])


NONSENSE: list[Any] = [
    *(None, "char", [], {}, json.loads("[" * 900 + "]" * 900)),
    *({"kind": "char"}, {"kind": "char", "chars": ""}, {"kind": "char", "chars": "aa"}),
    *({"kind": "char", "chars": ["a"]}, {"kind": "char", "chars": "ab", "more": 1}),
    *({"kind": "word", "chars": "ab"}, {"kind": "byte", "chars": "ab"}),
    *({"kind": "bpe", "merges": ""}, {"kind": "bpe", "special": []}, {"kind": "bpe"}),
    *({"kind": "bpe", "merges": [], "special": []}, {"kind": "bpe", "merges": "", "special": "a"}),
]


def test_characters_and_bytes_can_be_cut_anywhere() -> None:
    for tokenizer in (CharTokenizer("ab\n"), ByteTokenizer()):
        for text in ("", "a\nb\na", "ab"):
            assert tokenizer.cut(text) == len(text)


def test_nonsense_is_no_tokenizer() -> None:
    for plain in NONSENSE:
        with pytest.raises(ValueError, match="not a description"):
            load_tokenizer(plain)
