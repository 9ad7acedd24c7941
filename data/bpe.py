"""Sub-word tokens: byte-pair encoding (Sennrich et al. 2016) of bytes, as in GPT-2 (Radford et al.
2019). A text is cut into words, and the bytes of a word are joined, pair by pair, in the order of
`merges`. No token crosses a word; every text has tokens, and they give it back exactly.

What joins is the library `tokenizers`, an optional dependency: `pip install tokenizers`.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import UserError

# GPT-2 writes a byte as a character that can be seen: itself, or one from U+0100 on. Its tokens 0
# to 255 are the bytes in this order.
SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = SEEN + [byte for byte in range(256) if byte not in SEEN]
CHARS = [chr(b) for b in SEEN] + [chr(0x100 + i) for i in range(256 - len(SEEN))]
BYTE_OF = dict(zip(CHARS, BYTES, strict=True))

# Where a text can be cut so that both parts have the tokens they have together.
BETWEEN_LINES = re.compile(r"(?<=\S\n)(?=\S)")


def tokenizers() -> Any:
    """The library.

    Raises:
        UserError: when it is not installed.
    """
    try:
        import tokenizers as library
    except ImportError:
        raise UserError(
            "sub-word tokens need the library tokenizers: pip install tokenizers"
        ) from None
    return library


@dataclass(frozen=True)
class BPETokenizer:
    """One token a byte, or what `merges` join; the methods are those of CharTokenizer."""

    merges: tuple[tuple[str, str], ...]
    """Pairs of tokens to join, the first first, each token in GPT-2's characters for its bytes."""

    special: tuple[str, ...] = ()
    """Tokens that no text has, such as GPT-2's <|endoftext|>; the last ids are theirs."""

    def __post_init__(self) -> None:
        known = set(CHARS)
        for left, right in self.merges:
            if left not in known or right not in known:
                raise ValueError(f"the merge of {left!r} and {right!r} comes before its parts")
            known.add(left + right)
        if known & set(self.special) or len(set(self.special)) < len(self.special):
            raise ValueError("a special token appears twice")

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The id of each token."""
        tokens = [*CHARS, *(left + right for left, right in self.merges)]
        return {token: i for i, token in enumerate([*dict.fromkeys(tokens), *self.special])}

    @cached_property
    def _bytes(self) -> list[bytes]:
        """What each token stands for."""
        ordinary = list(self.vocabulary)[: self.vocab_size - len(self.special)]
        pieces = [bytes(BYTE_OF[char] for char in token) for token in ordinary]
        return pieces + [token.encode() for token in self.special]

    @cached_property
    def _encoder(self) -> Any:
        return tokenizers().Tokenizer.from_str(json.dumps(bpe_json(self.vocabulary, self.merges)))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> npt.NDArray[Any]:
        dtype = np.min_scalar_type(self.vocab_size - 1)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise UserError(
                "the text has bytes that are not UTF-8; only --data.tokenizer byte knows those"
            )
        ids = self._encoder.encode(text, add_special_tokens=False).ids if text else []
        return np.array(ids, dtype=dtype)

    def cut(self, text: str) -> int:
        places = list(BETWEEN_LINES.finditer(text))
        return places[-1].start() if places else len(text)

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self._bytes[i] for i in ids).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in ids:
            yield decoder.decode(self._bytes[i])
        yield decoder.decode(b"", final=True)

    @cached_property
    def _characters(self) -> npt.NDArray[np.int64]:
        return np.array([sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self._bytes])

    def count_characters(self, ids: npt.NDArray[Any]) -> int:
        return int(self._characters[ids].sum())

    @property
    def labels(self) -> list[str]:
        return [piece.decode("utf-8", "backslashreplace") for piece in self._bytes]

    def to_dict(self) -> dict[str, Any]:
        merges = "\n".join(f"{left} {right}" for left, right in self.merges)
        return {"kind": "bpe", "merges": merges, "special": list(self.special)}


def bpe_json(vocabulary: dict[str, int], merges: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What `tokenizers` reads, as plain data: a tokenizer.json of byte-level BPE."""
    pairs = [list(pair) for pair in merges]
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    by_bytes["use_regex"] = bool(pairs)  # GPT-2's words; bytes alone need none
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": by_bytes,
        "post_processor": None,
        "decoder": by_bytes,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": pairs,
        },
    }


def train_bpe(texts: Iterable[str], vocab_size: int) -> BPETokenizer:
    """The merges that join the most frequent pair of a text, again and again.

    Args:
        vocab_size: as many tokens, 256 of them bytes; fewer where a text has fewer pairs.
    """
    library = tokenizers()
    encoder = library.Tokenizer(library.models.BPE())
    encoder.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=CHARS, show_progress=False
    )
    encoder.train_from_iterator(texts, trainer)
    return BPETokenizer(read_merges(json.loads(encoder.to_str())["model"]["merges"]))


def read_merges(merges: Any) -> tuple[tuple[str, str], ...]:
    """Merges as `tokenizers` writes them: pairs, or each as a string with a space in it.

    Raises:
        ValueError: when they are none.
    """
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ValueError(f"{pair!r} is not a merge")
    return tuple((left, right) for left, right in pairs)
