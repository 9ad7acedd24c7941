"""Text and token ids are two forms of the same thing."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from data.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    load_tokenizer,
    smallest_unsigned,
)

texts = st.text(st.characters(codec="utf-8"), min_size=1)


def alphabet(text: str) -> CharTokenizer:
    return CharTokenizer("".join(sorted(set(text))))


@given(texts)
def test_any_text_round_trips(text: str) -> None:
    for tokenizer in (alphabet(text), ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert ids.max() < tokenizer.vocab_size
        assert tokenizer.decode(ids.tolist()) == text
        assert "".join(tokenizer.stream(ids.tolist())) == text
        assert tokenizer.count_characters(ids) == len(text)


@given(texts)
def test_a_tokenizer_survives_as_json(text: str) -> None:
    tokenizers: list[Tokenizer] = [alphabet(text), ByteTokenizer()]
    for tokenizer in tokenizers:
        assert load_tokenizer(json.loads(json.dumps(tokenizer.to_dict()))) == tokenizer


def test_ids_are_places_in_the_alphabet_in_the_smallest_type() -> None:
    tokenizer = CharTokenizer("abc")
    assert tokenizer.encode("cab").tolist() == [2, 0, 1]
    assert tokenizer.encode("cab").dtype == np.uint8
    many = CharTokenizer("".join(chr(0x4E00 + i) for i in range(300)))
    assert many.encode("\u4e00\u4f2b").tolist() == [0, 299]
    assert many.encode("\u4e00").dtype == np.uint16
    assert [str(smallest_unsigned(n)) for n in (1, 256, 257, 65536, 65537)] == (
        ["uint8", "uint8", "uint16", "uint16", "uint32"]
    )


def test_unknown_characters_are_listed() -> None:
    with pytest.raises(UserError, match=r"never seen '\\n' 'é' '😀'; it knows 2 characters"):
        CharTokenizer("ab").encode("a😀b\né😀")
    with pytest.raises(UserError, match="and 6 more"):
        CharTokenizer("ab").encode("cdefghijklmnopqrstuvwxyz0123456789"[:26])
    with pytest.raises(UserError, match="udc80"):
        CharTokenizer("ab").encode("a\udc80")  # how Python reads an argument that is not UTF-8


def test_bytes_are_written_as_soon_as_they_make_a_character() -> None:
    pieces = list(ByteTokenizer().stream("aé".encode()))
    assert pieces == ["a", "", "é", ""]
    assert ByteTokenizer().decode([0xFF, 0x61]) == "\ufffda"


@pytest.mark.parametrize(
    "plain",
    [
        *({}, {"kind": "char"}, {"kind": "char", "chars": ""}, {"kind": "char", "chars": "aa"}),
        *({"kind": "char", "chars": 3}, {"kind": "word"}, {"kind": "byte", "chars": "ab"}),
    ],
)
def test_nonsense_is_no_tokenizer(plain: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a description"):
        load_tokenizer(plain)
