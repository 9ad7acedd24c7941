"""Text <-> token ids: a token is a character of the corpus, a byte, or a sub-word (data/bpe.py)."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import UserError
from data.bpe import BPETokenizer, read_merges

MAX_CODE_POINT = 0x10FFFF
LISTED = 128  # characters at most that an error lists


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The Unicode code point of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


@dataclass(frozen=True)
class CharTokenizer:
    """One token a character: `chars[i]` is token i."""

    chars: str

    @cached_property
    def _ids(self) -> npt.NDArray[Any]:
        """The token of each code point; V, which is none, for those that have no token."""
        V = self.vocab_size
        ids = np.full(MAX_CODE_POINT + 1, V, dtype=np.min_scalar_type(V))
        ids[code_points(self.chars)] = np.arange(V)
        return ids

    @property
    def vocab_size(self) -> int:
        """V, the number of different tokens."""
        return len(self.chars)

    def encode(self, text: str) -> npt.NDArray[Any]:
        """Token ids of a text, in the smallest unsigned type that holds V of them.

        Raises:
            UserError: for characters it has no token for, listing them.
        """
        ids = self._ids.take(code_points(text), mode="clip")  # fast, and none is out of range
        if (ids == self.vocab_size).any():
            unknown = sorted(set(text) - set(self.chars))
            shown = " ".join(map(repr, unknown[:20]))
            more = f" and {len(unknown) - 20} more" if len(unknown) > 20 else ""
            known = f", {self.chars!r}" if self.vocab_size <= LISTED else ""
            raise UserError(
                f"the model has never seen {shown}{more}; it knows {self.vocab_size} characters"
                f"{known}: leave those out, or train one on a text that has them"
            )
        return ids.astype(np.min_scalar_type(max(self.vocab_size - 1, 0)), copy=False)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return "".join(self.stream(ids))

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of token ids one by one, each character as soon as it is complete."""
        return (self.chars[i] for i in ids)

    def count_characters(self, ids: npt.NDArray[Any]) -> int:
        """How many characters begin among the tokens."""
        return len(ids)

    def cut(self, text: str) -> int:
        """The last place where the text can be cut so that its parts have the tokens of the whole;
        its end, where there is none."""
        return len(text)

    @property
    def labels(self) -> list[str]:
        """Each token as a text to show; bytes that are no characters as \\xNN."""
        return list(self.chars)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `load_tokenizer` reads."""
        return {"kind": "char", "chars": self.chars}


@dataclass(frozen=True)
class ByteTokenizer:
    """One token a byte of the text's UTF-8 form, so that any text has tokens.

    The methods are those of CharTokenizer.
    """

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

    def cut(self, text: str) -> int:
        return len(text)

    @property
    def labels(self) -> list[str]:
        return [bytes([i]).decode("utf-8", "backslashreplace") for i in range(256)]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "byte"}


Tokenizer = CharTokenizer | ByteTokenizer | BPETokenizer


def load_tokenizer(plain: Any) -> Tokenizer:
    """The tokenizer that `to_dict` described.

    Raises:
        ValueError: when `plain` is not such a description.
    """
    match plain:
        case {"kind": "byte"} if len(plain) == 1:
            return ByteTokenizer()
        case {"kind": "char", "chars": str(chars)} if len(plain) == 2:
            if chars and len(set(chars)) == len(chars):
                return CharTokenizer(chars)
        case {"kind": "bpe", "merges": str(merges), "special": list(special)} if len(plain) == 3:
            if all(isinstance(token, str) for token in special):
                return BPETokenizer(read_merges(merges.splitlines()), tuple(special))
    raise ValueError("not a description of a tokenizer")
