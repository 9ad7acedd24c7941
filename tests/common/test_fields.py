"""A field has a type and a range; what is outside of them is refused by name."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from common.fields import Checked, Count, Fraction, In, Natural, NonNegative, brief, make


@dataclass(frozen=True)
class Inner(Checked):
    number: Count = 1


@dataclass(frozen=True)
class Example(Checked):
    count: Count = 1
    natural: Natural = 0
    fraction: Fraction = 0.0
    length: NonNegative = 0.0
    open_: Annotated[float, In("(0, 1]")] = 1.0
    maybe: Count | None = None
    flag: bool = False
    word: str = ""
    choice: Literal["a", "b"] = "a"
    texts: list[str] | str = "x"
    inner: Inner = Inner()


EDGES: dict[str, tuple[list[Any], list[Any]]] = {  # accepted, refused
    "count": ([1, 2**63 - 1], [0, -1, 2**63, 10**5000]),
    "natural": ([0, 1], [-1]),
    "fraction": ([0.0, 0.999], [1.0, -1e-9, math.nan, math.inf]),
    "length": ([0.0, 1e300], [-1e-9, math.nan, math.inf]),
    "open_": ([1.0, 1e-9], [0.0, 1.001, math.nan]),
    "maybe": ([None, 1], [0]),
    "word": (["", "\n", "日"], ["\0", "\udcff"]),
    "texts": ([["a", "b"]], [["a", "\0"]]),
}


def test_ranges_end_where_they_say() -> None:
    for name, (accepted, refused) in EDGES.items():
        for value in accepted:
            assert getattr(Example(**{name: value}), name) == value
        for value in refused:
            with pytest.raises(ValueError, match=f"^{name} ") as error:
                Example(**{name: value})
            assert len(str(error.value)) < 200


TYPES: dict[str, tuple[list[Any], list[Any]]] = {  # what converts, with the result; what does not
    "count": ([(3, 3), ("3", 3)], ["x", "", "1.5", 1.5, True, None, [3], "null", "9" * 9999]),
    "length": ([(3, 3.0), (0.5, 0.5), ("1e-3", 1e-3)], ["x", "", True, None, {}, "1,5", 10**400]),
    "maybe": ([(None, None), ("null", None), ("2", 2)], ["none", "x", 1.5]),
    "flag": ([("true", True), (False, False), ("False", False)], [1, "1", "yes", None, ""]),
    "word": ([("3", "3"), ("null", "null"), ("[a", "[a")], [3, None, ["a"], True]),
    "choice": ([("b", "b")], ["c", "", None, ["a"], {}, 1]),
    "texts": ([("a", "a"), (["a", "b"], ["a", "b"])], [3, None, [], [3], ["a", None], {}]),
    "inner": ([({"number": 2}, Inner(2))], [{}, {"number": 0}, {"number": 1, "x": 2}, None, 3]),
}


def test_values_convert_to_the_type_of_their_field() -> None:
    plain = dataclasses.asdict(Example())
    assert make(Example, plain) == Example()
    for name, (converts, refused) in TYPES.items():
        for value, result in converts:
            made = getattr(make(Example, plain | {name: value}), name)
            assert made == result and type(made) is type(result)
        for value in refused:
            with pytest.raises(ValueError, match=f"^{name}[ .]"):
                make(Example, plain | {name: value})
    less = {name: plain[name] for name in list(plain)[1:]}
    others: list[Any] = [plain | {"more": 1}, less, {}, None, [plain], "count"]
    for other in others:
        with pytest.raises(ValueError, match="should have the fields"):
            make(Example, other)


def test_a_value_in_a_message_is_short() -> None:
    laughs: Any = ["ha"] * 9
    for _ in range(9):
        laughs = [laughs] * 9  # 9 to the tenth when written out
    for value in (laughs, "[" * 10**6, 10**6000, -(10**40), json.loads("[" * 50 + "]" * 50)):
        assert len(brief(value)) < 500
    assert brief("a'b") == '"a\'b"' and brief(12) == "12"
