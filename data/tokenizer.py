"""Text <-> token ids: a token is a character of the corpus, or a byte."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from common.errors import UserError

MAX_CODE_POINT = 0x10FFFF


class Tokenizer(Protocol):
    """What the rest of the program asks of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """V, the number of different tokens."""

    def encode(self, text: str) -> npt.NDArray[Any]:
        """Token ids of a text.

        Raises:
            UserError: for characters it has no token for, listing them.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids."""

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of token ids one by one, each piece as soon as it is complete."""

    def count_characters(self, ids: npt.NDArray[Any]) -> int:
        """How many characters begin among the tokens."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `load_tokenizer` reads."""


def smallest_unsigned(size: int) -> np.dtype[Any]:
    """The smallest unsigned integer type that holds 0 .. size - 1."""
    return np.min_scalar_type(max(size - 1, 0))


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The Unicode code point of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


@dataclass(frozen=True)
class CharTokenizer:
    """One token a character: `chars[i]` is token i."""

    chars: str
    _ids: npt.NDArray[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = len(self.chars)  # an id past the last marks what has no token
        table = np.full(MAX_CODE_POINT + 1, unknown, dtype=np.min_scalar_type(unknown))
        table[code_points(self.chars)] = np.arange(unknown)
        object.__setattr__(self, "_ids", table)

    @property
    def vocab_size(self) -> int:
        return len(self.chars)

    def encode(self, text: str) -> npt.NDArray[Any]:
        ids = self._ids.take(code_points(text), mode="clip")  # none is past the table
        if (ids == self.vocab_size).any():
            strangers = sorted(set(text) - set(self.chars))
            shown = " ".join(repr(char) for char in strangers[:20])
            more = f" and {len(strangers) - 20} more" if len(strangers) > 20 else ""
            raise UserError(
                f"the model has never seen {shown}{more}; it knows {self.vocab_size} characters: "
                f"leave those out, or train one on a text that has them"
            )
        return ids.astype(smallest_unsigned(self.vocab_size), copy=False)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.chars[i] for i in ids)

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        return (self.chars[i] for i in ids)

    def count_characters(self, ids: npt.NDArray[Any]) -> int:
        return len(ids)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "char", "chars": self.chars}


@dataclass(frozen=True)
class ByteTokenizer:
    """One token a byte of the text's UTF-8 form; it can write and read anything."""

    vocab_size: int = field(default=256, init=False)

    def encode(self, text: str) -> npt.NDArray[np.uint8]:
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in ids:
            yield decoder.decode(bytes([i]))
        yield decoder.decode(b"", final=True)

    def count_characters(self, ids: npt.NDArray[Any]) -> int:
        return int(((ids & 0xC0) != 0x80).sum())  # all but UTF-8's continuation bytes

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "byte"}


def load_tokenizer(plain: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `to_dict` described.

    Raises:
        ValueError: when `plain` is not such a description.
    """
    if not isinstance(plain, dict):
        raise ValueError("not a description of a tokenizer")
    chars = plain.get("chars")
    if plain == {"kind": "byte"}:
        return ByteTokenizer()
    described = plain.keys() == {"kind", "chars"} and plain["kind"] == "char"
    if described and isinstance(chars, str) and chars and len(set(chars)) == len(chars):
        return CharTokenizer(chars)
    raise ValueError("not a description of a tokenizer")
