"""The types of options and configs: pydantic dataclasses, which validate their fields.

@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    n_layer: Count = 4
    \"\"\"Number of blocks.\"\"\"
"""

import reprlib
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

# Nothing is converted: 3.0 is not an integer, and "yes" is not a boolean. Any limit on the length
# of strings makes pydantic reject bytes that are not Unicode, which JSON cannot represent.
STRICT = ConfigDict(
    strict=True,
    extra="forbid",
    allow_inf_nan=False,
    use_attribute_docstrings=True,
    str_min_length=0,
)

Count = Annotated[int, Field(ge=1, lt=2**63)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]


def first_error(error: ValidationError) -> tuple[str, str]:
    """Return the field of the first error, such as "train.seed", and what is wrong with it.

    An error of a whole dataclass begins with the name of the wrong field.
    """
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":
        return place, str(first["ctx"]["error"])
    if first["type"] == "unexpected_keyword_argument":
        return place, "is unknown"
    message = first["msg"].replace("Input should", "must")
    return place, f"{message}, got {reprlib.repr(first['input'])}"
