"""Text <-> token ids. A token is a character of the text, a byte, a subword, or a word or number.

Subwords come from byte-level byte-pair encoding (Sennrich et al. 2016), as in GPT-2 (Radford et al.
2019): a text is split into words, and the bytes of a word are joined pair by pair in the order of
the merges. The library `tokenizers` computes this.
"""

import codecs
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from pydantic.dataclasses import dataclass

from common.errors import UserError

# GPT-2 writes each byte as a visible character: the byte itself, or a character from U+0100. Its
# tokens 0 to 255 are the bytes in this order.
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
BYTES = sorted(range(256), key=lambda byte: chr(byte) not in ALPHABET)
BYTE_OF = dict(zip(ALPHABET, BYTES, strict=True))
WORD = re.compile("[0-9]+|[A-Za-z]+|[^0-9A-Za-z \t\r\n]")  # of a WordTokenizer


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the Unicode code point of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


class Tokenizer:
    """Text <-> token ids from 0 to V - 1. To add a kind of tokens, write a dataclass with `kind`,
    `pieces` and `encode`, and name it in KINDS."""

    kind: str
    """The name that `--data.tokenizer` gives."""

    pieces: list[bytes]
    """The bytes of each token."""

    unit = "token"
    """The name of a token in units such as nats/char."""

    gap = ""
    """The text between two tokens."""

    errors = "strict"
    """The error handler for bytes that are not UTF-8, as for `open`."""

    def encode(self, text: str) -> npt.NDArray[Any]:
        """Return the token ids of a text, in the smallest unsigned type for V distinct ids.

        Raises:
            UserError: for a text with characters that no token represents.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `load_tokenizer`."""
        return {"kind": self.kind} | dataclasses.asdict(self)  # type: ignore[call-overload]

    @property
    def vocab_size(self) -> int:
        """V, the number of distinct tokens."""
        return len(self.pieces)

    @cached_property
    def labels(self) -> list[str]:
        """A printable text for each token; bytes that are not a character appear as \\xNN."""
        return [piece.decode("utf-8", "backslashreplace") for piece in self.pieces]

    @cached_property
    def characters(self) -> npt.NDArray[np.int64]:
        """The number of characters that begin in each token or the gap before it: its bytes but
        for UTF-8's continuation bytes."""
        pieces = [self.gap.encode() + piece for piece in self.pieces]
        return np.array([sum(byte & 0xC0 != 0x80 for byte in piece) for piece in pieces])

    def start_token(self, counts: npt.NDArray[Any] | None = None) -> int:
        """Return the token that precedes a text: <|endoftext|> or a newline if there is one, else
        the most frequent token.

        Args:
            counts: how often the text has each token; if omitted, once.
        """
        counts = np.ones(self.vocab_size) if counts is None else counts
        for label in ("<|endoftext|>", "\n"):
            if label in self.labels and counts[self.labels.index(label)]:
                return self.labels.index(label)
        return int(counts.argmax())

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids."""
        return "".join(self.stream(ids))

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of token ids one by one, each character as soon as it is complete."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        gap = ""
        for i in ids:
            yield gap + decoder.decode(self.pieces[i])
            gap = self.gap
        yield decoder.decode(b"", final=True)


@dataclass
class CharTokenizer(Tokenizer):
    """One token per character: `chars[i]` is token i."""

    kind = unit = "char"

    chars: str

    def __post_init__(self) -> None:
        self.pieces = [char.encode() for char in self.chars]

    @cached_property
    def _ids(self) -> npt.NDArray[Any]:
        """The token of each Unicode code point, or V if it has none."""
        V = self.vocab_size
        ids = np.full(sys.maxunicode + 1, V, dtype=np.min_scalar_type(V))
        ids[code_points(self.chars)] = np.arange(V)
        return ids

    def encode(self, text: str) -> npt.NDArray[Any]:
        ids = self._ids.take(code_points(text), mode="clip")  # fast; no index is out of range
        if (ids == self.vocab_size).any():
            unknown = sorted(set(text) - set(self.chars))[:20]
            raise UserError(
                f"the vocabulary lacks {' '.join(map(repr, unknown))}; leave them out, or train "
                f"on a text with them: python train.py --init_from RUN --data.source FILE"
            )
        return ids.astype(np.min_scalar_type(self.vocab_size - 1), copy=False)


@dataclass
class ByteTokenizer(Tokenizer):
    """One token per byte of UTF-8, so that any text has tokens."""

    kind = unit = "byte"
    errors = "surrogateescape"

    def __post_init__(self) -> None:
        self.pieces = [bytes([byte]) for byte in range(256)]

    def encode(self, text: str) -> npt.NDArray[Any]:
        return np.frombuffer(text.encode("utf-8", self.errors), dtype=np.uint8)


@dataclass
class BPETokenizer(Tokenizer):
    """One token per byte, or per sequence of bytes that `merges` join."""

    kind = "bpe"

    merges: str
    """Pairs of tokens to join, in this order, one per line, in GPT-2's characters."""

    special: tuple[str, ...] = ()
    """Added tokens, such as GPT-2's <|endoftext|>, which are found in a text before its words are.
    Their ids follow those of the merges."""

    unused: int = 0
    """Number of tokens that no text has. They have the last ids."""

    def __post_init__(self) -> None:
        known = {char: bytes([byte]) for char, byte in BYTE_OF.items()}
        self.pairs = [(left, right) for left, right in map(str.split, self.merges.splitlines())]
        for left, right in self.pairs:
            known.setdefault(left + right, known[left] + known[right])
        added = (*self.special, *(f"<|unused {i}|>" for i in range(self.unused)))
        known |= {token: token.encode() for token in added}
        self.pieces = list(known.values())
        self.vocabulary = {token: i for i, token in enumerate(known)}

    @cached_property
    def _encoder(self) -> Any:
        return byte_level_bpe(self.vocabulary, self.pairs, self.special)

    def encode(self, text: str) -> npt.NDArray[Any]:
        ids = self._encoder.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.min_scalar_type(self.vocab_size - 1))


@dataclass
class WordTokenizer(Tokenizer):
    """One token per word, number or sign: `words[i]` is token i. Spaces between them are optional
    in a text, unless they separate two words or two numbers."""

    kind, gap = "word", " "

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        self.pieces = [word.encode() for word in self.words]

    def encode(self, text: str) -> npt.NDArray[Any]:
        ids, found = {word: i for i, word in enumerate(self.words)}, WORD.findall(text)
        if unknown := sorted({*found} - {*ids})[:20]:
            known = " ".join([*self.words[:3], "...", *self.words[-3:]])
            raise UserError(
                f"the vocabulary, {known}, lacks {' '.join(map(repr, unknown))}; leave them out"
            )
        return np.array([ids[word] for word in found], np.min_scalar_type(self.vocab_size - 1))


KINDS = {each.kind: each for each in (CharTokenizer, ByteTokenizer, BPETokenizer, WordTokenizer)}


def load_tokenizer(plain: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that `to_dict` described.

    Raises:
        ValueError, LookupError, TypeError: if `plain` is not a description of a tokenizer.
    """
    fields = dict(plain)
    return KINDS[fields.pop("kind")](**fields)


def byte_level_bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], special: Sequence[str] = ()
) -> Any:
    """Return the library's tokenizer, which splits a text into words as GPT-2 does."""
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in special])
    return encoder


def train_bpe(texts: Iterable[str], vocab_size: int) -> BPETokenizer:
    """Learn merges by joining the most frequent pair of tokens of a text repeatedly.

    Args:
        vocab_size: number of tokens, including 256 bytes; a short text gives fewer.
    """
    encoder = byte_level_bpe({}, [])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=list(BYTE_OF), show_progress=False
    )
    encoder.train_from_iterator(texts, trainer)
    return BPETokenizer("\n".join(map(" ".join, json.loads(encoder.to_str())["model"]["merges"])))
