"""Fields of options and configs: a type, a default, and the range beside it.

class ModelConfig(Checked):
    n_layer: Count = 4
    dropout: Fraction = 0.0
    ngrams: Annotated[int, In("[1, 16]")] = 1
"""

import math
import reprlib
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

LARGEST = 2**63 - 1  # of a whole number, which PyTorch and NumPy keep in 64 bits


@dataclass(frozen=True)
class In:
    """A range, written as in mathematics: In("[0, 1)") is 0 <= number < 1."""

    interval: str

    def __contains__(self, number: float) -> bool:
        low, high = map(float, self.interval[1:-1].split(","))
        above = number >= low if self.interval[0] == "[" else number > low
        below = number <= high if self.interval[-1] == "]" else number < high
        return above and below


Count = Annotated[int, In("[1, inf)")]
Natural = Annotated[int, In("[0, inf)")]
Rate = Annotated[float, In("[0, 1e30]")]  # a step of float32 numbers has no room for more
Fraction = Annotated[float, In("[0, 1)")]
NonNegative = Annotated[float, In("[0, inf)")]


@dataclass(frozen=True)
class FieldType:
    """What a field of a dataclass may hold."""

    kind: Any
    """int, float, bool, str, a Literal, or a list of texts."""

    limits: In | None
    optional: bool
    """Whether it may be None."""


def field_types(kind: type) -> dict[str, FieldType]:
    """The type of each field of a dataclass."""
    types = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        optional = NoneType in get_args(hint)
        if optional:
            (hint,) = (choice for choice in get_args(hint) if choice is not NoneType)
        limits = next((mark for mark in getattr(hint, "__metadata__", ())), None)
        types[name] = FieldType(
            getattr(hint, "__origin__", hint) if limits else hint, limits, optional
        )
    return types


class Checked:
    """A dataclass whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        """Raises: ValueError, whose message begins with the name of the field."""
        for name, field in field_types(type(self)).items():
            value = getattr(self, name)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and not is_text(text):
                    raise ValueError(f"{name} has characters that no text has: {brief(text)}")
            if isinstance(value, int) and abs(value) > LARGEST:
                raise ValueError(f"{name} must be below 2**63, got {brief(value)}")
            if field.limits is not None and value is not None and value not in field.limits:
                raise ValueError(f"{name} must be in {field.limits.interval}, got {brief(value)}")


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8 and be part of a file's name."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def brief(value: Any) -> str:
    """A value in a message: in a few words, however large it is."""
    if isinstance(value, int) and abs(value) > 10**30:
        return f"a number of about {math.log10(abs(value)):.0f} digits"
    return reprlib.repr(value)
