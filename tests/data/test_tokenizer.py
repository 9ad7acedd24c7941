"""Tokenizers encode and decode text without loss."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.errors import UserError
from data.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    WordTokenizer,
    load_tokenizer,
    train_bpe,
)

LINES = "the man said: there's a tree on the hill, and it's not the man's\nwhose, they asked, été\n"
# Texts that tokenizers often get wrong: combining marks, emoji of several code points, line ends,
# NUL, runs of spaces, spaces before punctuation, special tokens as text, scripts without spaces.
ODD = [
    "",
    "\n",
    " ",
    "e\u0301 é \u1100\u1161",
    "👩\u200d👩\u200d👧 🇫🇷 ☕\ufe0f",
    "a\r\nb\rc\n\n\nd\n  e",
    "nul\0nul",
    "  two   three    \t\ttabs ",
    "<|endoftext|>",
    "a<|endoftext|>\nb",
    "it 's n't , . ! don't I'LL",
    "\ufeffBOM\u2028line\u2029\x85\x0b\x0c\x1c end\u180e\u3000日本語 שלום",
    "12 345 6.7e8 ²½ _x_ ---",
]
BPE = BPETokenizer(train_bpe([LINES * 9], 299).merges, ("<|endoftext|>",))  # GPT-2's special token
WORDS = WordTokenizer((*map(str, range(13)), "+", "="))


@given(st.text(st.characters(codec="utf-8"), min_size=1))
@example("".join(ODD))
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
@example([*"aé".encode()])
def test_any_tokens_are_streamed_as_decoded(ids: list[int]) -> None:
    """The tokens may be incomplete characters; a character appears once it is complete."""
    for tokenizer in (ByteTokenizer(), BPE):
        pieces = b"".join(tokenizer.pieces[i] for i in ids)
        streamed = list(tokenizer.stream(ids))
        assert tokenizer.decode(ids) == "".join(streamed) == pieces.decode("utf-8", "replace")
        for count in range(len(ids)):
            complete = b"".join(tokenizer.pieces[i] for i in ids[:count]).decode("utf-8", "ignore")
            assert len("".join(streamed[:count])) >= len(complete)
    assert ByteTokenizer().labels[0xC3] == r"\xc3"  # an incomplete character is shown in hex


@given(st.lists(st.integers(0, 14)))
@example([*range(15), *range(15)])
def test_any_numbers_round_trip(ids: list[int]) -> None:
    """Only two numbers need a space between them, and more spaces change nothing."""
    text = WORDS.decode(ids)
    assert text == " ".join(WORDS.words[i] for i in ids) == "".join(WORDS.stream(iter(ids)))
    assert WORDS.characters[ids].sum() == len(text) + bool(ids)  # each token and a space
    for written in (text, re.sub(r" ?([+=]) ?", r"\1", text), f" {text} ".replace(" ", "\n  ")):
        assert WORDS.encode(written).tolist() == ids


def test_unknown_numbers_and_signs_are_named() -> None:
    with pytest.raises(UserError, match=r"^the vocabulary, 0 1 2 .* lacks '01' '13' 'x'; leave"):
        WORDS.encode("13 + 01 = x 12")


def test_ids_have_the_smallest_sufficient_dtype() -> None:
    for V, dtype in ((255, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")):
        char = CharTokenizer("".join(map(chr, range(0x10000, 0x10000 + V))))
        ids = char.encode(char.chars)
        assert ids.dtype == dtype and ids.tolist() == list(range(V))
        with pytest.raises(UserError, match="lacks 'a'"):
            char.encode("a")
    for special, dtype in (((), "u1"), (("<end>",), "u2")):
        assert BPETokenizer("", special).encode("a").dtype == dtype


def test_characters_without_tokens_are_named() -> None:
    with pytest.raises(UserError, match=r"vocabulary lacks '\\n' 'é' '😀'; leave"):
        CharTokenizer("ab").encode("a😀b\né😀")
    assert ByteTokenizer().encode("a\udc80").tolist() == [0x61, 0x80]


def test_bpe_merges_the_most_frequent_pair_first() -> None:
    tokenizer = train_bpe(["abab cab cab"], 258)
    assert tokenizer.merges == "a b\nc ab"
    pieces = [tokenizer.pieces[i] for i in tokenizer.encode("cab abab xc'abc")]
    assert pieces == [b"cab", b" ", b"ab", b"ab", b" ", b"x", b"c", b"'", b"ab", b"c"]
    larger, smaller = (train_bpe([LINES * 9], size) for size in (299, 270))
    assert (larger.vocab_size, smaller.vocab_size) == (299, 270)
    assert larger.merges.startswith(smaller.merges)
    assert not any(" " in label[1:] for label in larger.labels)  # no token crosses words


def test_description_round_trips_or_is_rejected() -> None:
    for tokenizer in (CharTokenizer("\n\0é😀"), ByteTokenizer(), BPE, BPETokenizer(""), WORDS):
        again = load_tokenizer(json.loads(json.dumps(tokenizer.to_dict())))
        assert again == tokenizer and again.pieces == tokenizer.pieces
    wrong = [{"kind": "letter"}, {"kind": "char", "chars": "\ud800"}, {"kind": "word"}]
    wrong += [{"kind": "bpe", "merges": text} for text in ("h", "t he")]
    for plain in wrong:
        with pytest.raises((ValueError, LookupError, TypeError)):
            load_tokenizer(plain)
