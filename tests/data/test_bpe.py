"""Sub-words: they are those of the merges, and give any text back."""

import functools
import json
import re
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import UserError
from data.bpe import BYTE_OF, BPETokenizer, train_bpe
from data.tokenizer import load_tokenizer
from tests.formats.models import LINES, ODD, TEXT, bpe

texts = st.text(st.characters(codec="utf-8"))
# Words, ends of lines, what \s means to some and not to others, and the ends of contractions.
SIGNS = "ab\n \t'.!é1s"
close = st.text(st.sampled_from(f"{SIGNS}\n\n\r\x0b\x0c\x1c\x85\xa0\u180e\u2028\u200b\ufeff日"))
# GPT-2's words, for ASCII.
WORDS = re.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)


def join(word: bytes, tokenizer: BPETokenizer) -> list[int]:
    """The tokens of a word: of all pairs that can be joined, the earliest merge goes first."""
    char_of = {byte: char for char, byte in BYTE_OF.items()}
    parts = [char_of[byte] for byte in word]
    while joined := set(pairwise(parts)) & set(tokenizer.merges):
        pair, rest, i = min(joined, key=tokenizer.merges.index), parts, 0
        parts = []
        while i < len(rest):
            found = tuple(rest[i : i + 2]) == pair
            parts.append("".join(rest[i : i + 1 + found]))
            i += 1 + found
    return [tokenizer.vocabulary[part] for part in parts]


# --- tokens --------------------------------------------------------------------------------------


@given(texts)
@example("".join(ODD))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = bpe()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16
    assert tokenizer.decode(ids.tolist()) == "".join(tokenizer.stream(ids.tolist())) == text
    assert tokenizer.count_characters(ids) == len(text)
    pieces = [tokenizer.count_characters(ids[i : i + 1]) for i in range(len(ids))]
    assert sum(pieces) == len(text), "a character is counted at its first token"
    assert b"".join(tokenizer._bytes[i] for i in ids) == text.encode()


@given(st.text("theman's wdITH12 \n\t!?-'", max_size=60))
@example(LINES.replace("é", "e"))
def test_words_are_joined_by_the_earliest_merge(text: str) -> None:
    expected = [i for word in WORDS.findall(text) for i in join(word.encode(), bpe())]
    assert bpe().encode(text).tolist() == expected


@given(st.lists(st.integers(0, bpe().vocab_size - 1)))
def test_any_tokens_decode_alike_at_once_and_one_by_one(ids: list[int]) -> None:
    """Halves of characters too."""
    content = b"".join(bpe()._bytes[i] for i in ids)
    expected = content.decode("utf-8", "replace")
    assert bpe().decode(ids) == "".join(bpe().stream(ids)) == expected


def test_a_character_is_streamed_as_soon_as_it_is_complete() -> None:
    tokenizer = BPETokenizer((), ("<|end|>",))
    ids = [*tokenizer.encode("aé").tolist(), 256]
    assert list(tokenizer.stream(ids)) == ["a", "", "é", "<|end|>", ""]


def test_bytes_are_numbered_as_in_gpt_2() -> None:
    """Where it is known: `!` is 0, `A` 32, a line's end 198, a space 220."""
    for text, token in (("!", 0), ("A", 32), ("~", 93), ("\n", 198), (" ", 220), ("\0", 188)):
        assert bpe().encode(text).tolist() == [token]
    from tokenizers.pre_tokenizers import ByteLevel

    assert list(bpe().vocabulary)[:256] == sorted(ByteLevel.alphabet())
    assert sorted(bpe()._bytes[:256]) == [bytes([byte]) for byte in range(256)]


def test_special_tokens_are_no_text() -> None:
    tokenizer = BPETokenizer(bpe().merges, ("<|endoftext|>", "<|é|>"))
    assert max(tokenizer.encode("a<|endoftext|><|é|>")) < 299 and tokenizer.vocab_size == 301
    assert tokenizer.decode([299, 64, 300]) == "<|endoftext|>a<|é|>"
    assert tokenizer.count_characters(np.array([299, 64, 300])) == 13 + 1 + 5
    assert tokenizer.labels[299:] == ["<|endoftext|>", "<|é|>"]


def test_labels_can_be_shown() -> None:
    labels = bpe().labels
    assert len(labels) == bpe().vocab_size and " the" in labels and "\n" in labels
    for text in ("the", " man", "!", " "):
        assert labels[bpe().encode(text)[0]] == text
    assert labels[bpe().encode("日")[0]] == r"\xe6"


def test_ids_are_of_the_smallest_type_that_holds_them() -> None:
    for V, dtype in ((256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")):
        tokenizer = BPETokenizer((), tuple(f"<{i}>" for i in range(V - 256)))
        assert tokenizer.vocab_size == V
        for text in ("", "ab"):
            assert tokenizer.encode(text).dtype == dtype and len(tokenizer.encode(text)) == len(
                text
            )


def test_bytes_that_are_no_text_are_refused() -> None:
    for text in ("a\udc80", "\ud800", "é\udfff"):
        with pytest.raises(UserError, match=r"not UTF-8; only --data\.tokenizer byte"):
            bpe().encode(text)


# --- training ------------------------------------------------------------------------------------


def test_the_most_frequent_pair_is_joined_first() -> None:
    assert train_bpe(["abab cab cab"], 258).merges == (("a", "b"), ("c", "ab"))
    assert train_bpe(["xyz xyz xy", " xy"], 300).merges == (
        *(("x", "y"), ("Ġ", "xy"), ("xy", "z"), ("Ġxy", "z")),
    )


def test_training_is_the_same_each_time_and_of_the_size_that_is_asked_for() -> None:
    for size in (257, 270, 299):
        made = [train_bpe([TEXT, LINES.upper()], size) for _ in range(3)]
        assert made[0] == made[1] == made[2]
        assert made[0].vocab_size == size == len(made[0].merges) + 256
    larger, smaller = (train_bpe([TEXT], size).merges for size in (299, 270))
    assert larger[: len(smaller)] == smaller
    assert train_bpe([TEXT], 299) != train_bpe([TEXT.upper()], 299)


def test_a_short_text_has_fewer_tokens() -> None:
    for text, V in (("", 256), ("a", 256), ("ab", 257), ("the cat", 261)):
        tokenizer = train_bpe([text], 1000)
        assert tokenizer.vocab_size == V and tokenizer.decode(tokenizer.encode(text)) == text


def test_no_token_crosses_a_word() -> None:
    tokenizer = train_bpe([LINES * 5], 1000)
    for label in tokenizer.labels[256:]:
        assert WORDS.fullmatch(label.replace("é", "e").replace("\\xc3", "e")), label


# --- where a text can be cut ---------------------------------------------------------------------


@functools.cache
def greedy() -> BPETokenizer:
    """One that joins whatever stands side by side in a word: other words are other tokens."""
    return train_bpe(map("".join, product(SIGNS, repeat=3)), 2000)


@given(st.text(SIGNS) | close)
@settings(max_examples=200)
@example("a\nb\n'\ns")
@example("x\n\x1cy\n \x85\ny")
@example("a\n\nb")
@example("a\n  b")
def test_both_parts_have_the_tokens_of_the_whole(text: str) -> None:
    cut = greedy().cut(text)
    parts = [greedy().encode(part).tolist() for part in (text[:cut], text[cut:])]
    assert parts[0] + parts[1] == greedy().encode(text).tolist()


def test_it_is_cut_at_its_last_place() -> None:
    for text in ("one\ntwo", "one\ntwo\n three\nfour\n", "a\nb", "é\n日", "\n.\n'"):
        after = bpe().cut(text)
        assert text[after - 1] == "\n" and not text[after].isspace()
        assert "\n" not in text[after:].rstrip("\n") and after < len(text)
    for text in ("", "one", "one\n", "\none", "one\n two", "one\n\ntwo", "one \ntwo\t\n"):
        expected = 5 if text == "one \ntwo\t\n" else len(text)
        assert bpe().cut(text) in (expected, len(text))
    assert bpe().cut("one\ntwo\n\nthree") == 4


# --- descriptions --------------------------------------------------------------------------------


def test_a_description_is_read_back() -> None:
    for tokenizer in (bpe(), BPETokenizer(()), BPETokenizer((), ("<|a b|>", "\n"))):
        again = load_tokenizer(json.loads(json.dumps(tokenizer.to_dict())))
        assert again == tokenizer and again.vocab_size == tokenizer.vocab_size


MERGES = [("h", "e"), ("t", "he")]
NONSENSE: list[tuple[Any, str]] = [
    ({"merges": ["h e"]}, "not a description"),
    ({"special": "x"}, "not a description"),
    ({"special": [1]}, "not a description"),
    ({"special": None}, "not a description"),
    ({"more": 1}, "not a description"),
    ({"kind": "BPE"}, "not a description"),
    ({"merges": "h"}, "is not a merge"),
    ({"merges": "h e\nt h e"}, "is not a merge"),
    ({"merges": "h e\n\nt he"}, "is not a merge"),
    ({"merges": "t he\nh e"}, "the merge of 't' and 'he' comes before its parts"),
    ({"merges": "日 本"}, "comes before its parts"),
    ({"special": ["a"]}, "appears twice"),
    ({"special": ["the"]}, "appears twice"),
    ({"special": ["<>", "<>"]}, "appears twice"),
]


def test_nonsense_is_no_tokenizer() -> None:
    good = {"kind": "bpe", "merges": "h e\nt he", "special": ["<>"]}
    assert load_tokenizer(good) == BPETokenizer(tuple(MERGES), ("<>",))
    for changes, message in NONSENSE:
        with pytest.raises(ValueError, match=message):
            load_tokenizer(good | changes)
    for name in ("merges", "special"):
        with pytest.raises(ValueError, match="not a description"):
            load_tokenizer({key: value for key, value in good.items() if key != name})
