"""Options and configs are frozen dataclasses: a type, a default, and the range beside the field.

@dataclass(frozen=True)
class ModelConfig(Checked):
    n_layer: Count = 4
    dropout: Fraction = 0.0
    ngrams: Annotated[int, In("[1, 16]")] = 1
"""

import dataclasses
import math
import reprlib
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Made = TypeVar("Made")
SHORT = reprlib.Repr()
SHORT.maxlevel = 2  # lists in lists in lists can be endless


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
Fraction = Annotated[float, In("[0, 1)")]
NonNegative = Annotated[float, In("[0, inf)")]


@dataclass(frozen=True)
class FieldType:
    """What a field of a dataclass may hold."""

    kind: Any
    """int, float, bool, str, dict, a Literal of texts, list[str] | str, or a dataclass."""

    limits: In | None
    optional: bool
    """Whether it may be None."""

    def __str__(self) -> str:
        """The type in words."""
        if get_origin(self.kind) is Literal:
            return "one of " + ", ".join(get_args(self.kind))
        words = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "text",
            dict: "a mapping",
        }
        return words.get(self.kind, "text or a list of texts")

    def convert(self, value: Any) -> Any:
        """A value of this type from text, as flags and YAML have it, or from what JSON has.

        Raises:
            ValueError: for what is not of this type, or outside its range.
        """
        converted = self.read(value)
        self.check(converted)
        return converted

    def check(self, value: Any) -> None:
        """Raises: ValueError, for a value outside the range of the field."""
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not is_text(text):
                raise ValueError(f"contains characters that no text can have: {brief(text)}")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"must be below 2**63, got {brief(value)}")
        if self.limits is not None and value is not None and value not in self.limits:
            raise ValueError(f"must be in {self.limits.interval}, got {brief(value)}")

    def read(self, value: Any) -> Any:
        """`convert`, whatever the range."""
        kind, given = self.kind, type(value)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return make(kind, value)
        if self.optional and (value is None or (value == "null" and kind in (int, float))):
            return None
        # (The text of a list of lists of lists can be endless.)
        if kind is bool and given in (str, bool) and str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        if kind in (int, float) and given in (str, int, kind):
            with suppress(ValueError, OverflowError):
                return kind(value)
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind in (str, dict) and given is kind:
            return value
        if kind == list[str] | str:
            texts = value if given is list else [value]
            if texts and all(type(text) is str for text in texts):
                return value
        raise ValueError(f"must be {self}, got {brief(value)}")


def field_types(kind: type) -> dict[str, FieldType]:
    """The type of each field of a dataclass."""
    types = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        optional = NoneType in get_args(hint)
        if optional:
            (hint,) = (choice for choice in get_args(hint) if choice is not NoneType)
        hint = dict if get_origin(hint) is dict else hint
        limits = next(iter(getattr(hint, "__metadata__", ())), None)
        types[name] = FieldType(
            getattr(hint, "__origin__", hint) if limits else hint, limits, optional
        )
    return types


class Checked:
    """A dataclass whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        """Raises: ValueError, whose message begins with the name of the field."""
        for name, field in field_types(type(self)).items():
            try:
                field.check(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None


def make(kind: type[Made], plain: Any) -> Made:
    """A dataclass from plain data that has every field of it, and no other.

    Raises:
        ValueError: naming the field.
    """
    types = field_types(kind)
    if not isinstance(plain, dict) or plain.keys() != types.keys():
        raise ValueError(f"should have the fields {', '.join(types)}, and no others")
    values = {}
    for name, field in types.items():
        try:
            values[name] = field.convert(plain[name])
        except ValueError as error:
            dot = "." if dataclasses.is_dataclass(field.kind) else " "
            raise ValueError(f"{name}{dot}{error}") from None
    return kind(**values)


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
    return SHORT.repr(value)
