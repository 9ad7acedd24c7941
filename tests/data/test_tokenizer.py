"""Tokenizers encode and decode text without loss."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.errors import UserError
from data.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    load_tokenizer,
    train_bpe,
)

LINES = "the man said: there's a tree on the hill, and it's not the man's\nwhose, they asked, été\n"
ODD = "a\r\nb\n\n \x85nul\0 \ufeffBOM e\u0301 👩\u200d👩\u200d👧 שלום <|endoftext|>"
BPE = BPETokenizer(train_bpe([LINES * 9], 299).merges, ("<|endoftext|>",))  # GPT-2's special token


@given(st.text(st.characters(codec="utf-8"), min_size=1))
@example(ODD)
@example(LINES)
def test_any_text_round_trips(text: str) -> None:
    chars = "".join(sorted(set(text)))
    for tokenizer in (CharTokenizer(chars), ByteTokenizer(), BPE):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == "".join(tokenizer.stream(ids)) == text
        assert b"".join(tokenizer.pieces[i] for i in ids) == text.encode()
        assert tokenizer.characters[ids].sum() == len(text)
    assert CharTokenizer(chars).encode(text).tolist() == [chars.index(char) for char in text]
    assert ByteTokenizer().encode(text).tolist() == list(text.encode())


@given(st.lists(st.integers(0, 255)))
def test_streaming_any_tokens_equals_decoding_them(ids: list[int]) -> None:
    """The tokens may be incomplete characters."""
    for tokenizer in (ByteTokenizer(), BPE):
        expected = b"".join(tokenizer.pieces[i] for i in ids).decode("utf-8", "replace")
        assert tokenizer.decode(ids) == "".join(tokenizer.stream(ids)) == expected


def test_character_is_streamed_once_it_is_complete() -> None:
    assert list(ByteTokenizer().stream("aé".encode())) == ["a", "", "é", ""]
    assert ByteTokenizer().labels[0xC3] == r"\xc3"  # an incomplete character is shown in hex


def test_ids_have_the_smallest_sufficient_dtype() -> None:
    for V, dtype in ((256, "uint8"), (257, "uint16"), (65537, "uint32")):
        char = CharTokenizer("".join(map(chr, range(0x10000, 0x10000 + V))))
        ids = char.encode(char.chars)
        assert ids.dtype == dtype and ids.tolist() == list(range(V))


def test_characters_without_tokens_are_named() -> None:
    with pytest.raises(UserError, match=r"vocabulary lacks '\\n' 'é' '😀'; leave"):
        CharTokenizer("ab").encode("a😀b\né😀")
    assert ByteTokenizer().encode("a\udc80").tolist() == [0x61, 0x80]


def test_bpe_merges_the_most_frequent_pair_first() -> None:
    tokenizer = train_bpe(["abab cab cab"], 258)
    assert tokenizer.merges == "a b\nc ab"
    ids = tokenizer.encode("cab abab xc'abc")
    words = [b"cab", *(b" ", b"ab", b"ab"), *(b" ", b"x", b"c"), *(b"'", b"ab", b"c")]
    assert [tokenizer.pieces[i] for i in ids] == words
    larger, smaller = (train_bpe([LINES * 9], size) for size in (299, 270))
    assert (larger.vocab_size, smaller.vocab_size) == (299, 270)
    assert larger.merges.startswith(smaller.merges)
    assert not any(" " in label[1:] for label in larger.labels)  # no token crosses words


def test_tokenizer_description_round_trips() -> None:
    kinds = [CharTokenizer(ODD[:5]), ByteTokenizer(), BPE, BPETokenizer("")]
    for tokenizer in kinds:
        again = load_tokenizer(json.loads(json.dumps(tokenizer.to_dict())))
        assert again == tokenizer and again.pieces == tokenizer.pieces


@pytest.mark.parametrize(
    "plain",
    [
        *(None, [], {}, {"kind": "char"}, {"kind": "char", "chars": ["a"]}, {"kind": "bpe"}),
        *({"kind": "char", "chars": "\ud800"}, {"kind": "word", "chars": "ab"}),
        *(
            {"kind": "bpe", "merges": text, "special": []}
            for text in ("h", "t h e", "t he", "日 本")
        ),
        *({"kind": "bpe", "merges": "", "special": it} for it in ("x", [1], ["\ud800"])),
    ],
)
def test_invalid_description_is_rejected(plain: Any) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        load_tokenizer(plain)
