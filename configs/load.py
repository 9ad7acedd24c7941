"""Defaults, a YAML file, and flags -> one typed tree of frozen dataclasses.

    python train.py configs/gpt2.yaml --model.n_layer 6

A field of a config is a flag, and the docstring under it is the flag's help. Values are read as
text, and become numbers or booleans only where the field is not a text.
"""

import argparse
import dataclasses
import difflib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

import yaml
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from common.errors import UserError
from common.fields import STRICT, first_error
from data.config import DataConfig
from model.config import ModelConfig
from training.config import TrainConfig

Options = TypeVar("Options")
# By section; "" holds a command's own flags.
Values = dict[str, dict[str, Any]]


@dataclass(frozen=True, config=STRICT)
class Config:
    """The whole config of a run."""

    data: DataConfig = Field(default_factory=DataConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)


SECTIONS: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


def flag(section: str, name: str) -> str:
    """Return the flag of a field."""
    return f"--{section}.{name}" if section else f"--{name}"


def fields_of(kind: type) -> dict[str, Any]:
    """Return pydantic's description of each field of a dataclass, by name."""
    fields: dict[str, Any] = dict(vars(kind)["__pydantic_fields__"])
    for base in kind.__mro__[1:-1]:  # pydantic does not inherit docstrings
        for name, field in vars(base)["__pydantic_fields__"].items():
            fields[name].description = fields[name].description or field.description
    return fields


def parse_value(field: Any, value: Any) -> Any:
    """Return a text as what the field may hold; what is no number stays a text."""
    kinds = {field.annotation, get_origin(field.annotation), *get_args(field.annotation)}
    if not isinstance(value, str) or kinds & {str, Literal}:
        return value
    for number in (int, float):
        with suppress(ValueError):
            return number(value)
    return {"true": True, "false": False, "null": None}.get(value.lower(), value)


def read_command_line(
    sections: dict[str, type], argv: list[str], usage: str, description: str, words: int = 1
) -> tuple[str | None, Values]:
    """Return the one word without a flag, if there is one, and the values of the given flags.

    Args:
        sections: dataclasses, whose fields are flags, by the prefix of the flags.
        words: 0 if the command takes no word without a flag.

    Raises:
        UserError: for an unknown flag, a flag without a value, and further words.
    """
    parser = Parser(usage=usage, description=description, allow_abbrev=False)
    flags = {}
    for section, kind in sections.items():
        group = parser.add_argument_group((kind.__doc__ or "").splitlines()[0].rstrip("."))
        for name, field in fields_of(kind).items():
            choices, note = get_args(field.annotation), ""
            if get_origin(field.annotation) is Literal:
                note = f" (one of {', '.join(choices)}; default: {field.default})"
            elif field.default not in (None, ""):
                note = f" (default: {field.default})"
            flags[flag(section, name)] = section, name, field
            group.add_argument(
                flag(section, name),
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=" ".join((field.description or "").split()).replace("%", "%%") + note,
                action="append" if list[str] in choices else "store",
            )
    alone = {name for name, (_, _, field) in flags.items() if field.annotation is bool}
    argv = [  # a boolean flag may stand alone
        f"{word}=true" if word in alone and after.lower() not in ("true", "false") else word
        for word, after in zip(argv, [*argv[1:], ""], strict=False)
    ]
    given, rest = parser.parse_known_args(argv)
    for word in rest:
        if word.startswith("-"):
            name = word.split("=")[0]
            raise UserError(f"unknown flag {name}{nearest(name, flags) or '; see --help'}")
    if rest[words:]:
        raise UserError(f"unknown {' '.join(rest[words:])}; see --help")
    values: Values = {section: {} for section in sections}
    for key, value in vars(given).items():
        section, name, field = flags[f"--{key}"]
        values[section][name] = parse_value(field, value)
    return (rest[0] if rest else None), values


def build(
    kind: type[Options],
    values: dict[str, Any],
    section: str = "",
    place: Callable[[str, str], str] = flag,
) -> Options:
    """Make a dataclass of values and defaults.

    Args:
        place: names where the value of a section's field comes from.

    Raises:
        UserError: naming where the value comes from.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        field, message = first_error(error)
        name = field.split(".")[0]  # without the choices of a union
        if not name:  # the message begins with a field
            raise UserError(flag(section, message)) from None
        raise UserError(f"{place(section, name)} {message}") from None


def read_config(values: Values, file: str | None, base: Config | None = None) -> Config:
    """Read the config from the flags, over a file, over `base` or the defaults.

    `minutes` and `max_steps` both say how long a run is: the last that is given counts.

    Raises:
        UserError: naming what is wrong in the file or the flags.
    """
    plain = to_plain(base or Config())
    in_file = read_yaml(Path(file)) if file else {}
    for layer in (in_file, values):
        plain = {section: plain[section] | layer.get(section, {}) for section in SECTIONS}
        train = layer.get("train", {})
        if "max_steps" in train:
            if train.get("minutes"):
                where = f"{file}: train." if layer is not values else "--train."
                raise UserError(f"{where}max_steps and minutes both set the length; give one")
            plain["train"]["minutes"] = 0.0

    def place(section: str, name: str) -> str:
        only_in_file = name in in_file.get(section, {}).keys() - values.get(section, {}).keys()
        return f"{file}: {section}.{name}" if only_in_file else flag(section, name)

    return Config(
        **{name: build(kind, plain[name], name, place) for name, kind in SECTIONS.items()}
    )


def to_plain(config: Config) -> Values:
    """Return the config as nested dictionaries, for YAML and JSON."""
    return dataclasses.asdict(config)


def read_yaml(path: Path) -> Values:
    """Read the values of a config file.

    Raises:
        UserError: naming the file and what is wrong in it.
    """
    if not path.is_file():
        shipped = sorted(f"configs/{p.name}" for p in Path(__file__).parent.glob("*.yaml"))
        raise UserError(f"there is no config file {path}{nearest(str(path), shipped)}")
    try:
        # To this loader every scalar is text, and tags mean nothing.
        plain = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a config: {' '.join(str(error).split())}") from None
    if not isinstance(plain, dict):
        raise UserError(f"{path} must have sections: {', '.join(SECTIONS)}")
    for section, given in plain.items():
        if section not in SECTIONS:
            raise UserError(f"{path}: unknown section {section}{nearest(section, SECTIONS)}")
        if not isinstance(given, dict):
            raise UserError(f"{path}: {section} must hold fields")
        fields = fields_of(SECTIONS[section])
        for name in given:
            if name not in fields:
                raise UserError(f"{path}: unknown key {section}.{name}{nearest(name, fields)}")
            given[name] = parse_value(fields[name], given[name])
    return plain


def nearest(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' for a word close to a known one."""
    close = difflib.get_close_matches(word, known := list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
