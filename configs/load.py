"""Defaults, a YAML file, and flags -> one typed tree of frozen dataclasses.

    python train.py configs/gpt2.yaml --model.n_layer 6

Each config field is a flag, and the docstring under the field is the flag's help. Values are read
as text, and converted to numbers or booleans unless the field is a string.
"""

import argparse
import dataclasses
import difflib
import functools
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import yaml
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from common.errors import UserError, reading
from common.fields import STRICT, first_error
from data.config import DataConfig
from model.config import ModelConfig
from training.config import TrainConfig

Options = TypeVar("Options")
# Values by section and name; the section "" has a command's own flags.
Values = dict[str, dict[str, Any]]


@dataclass(frozen=True, config=STRICT)
class Config:
    """The whole config of a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()


SECTIONS: dict[str, type] = get_type_hints(Config)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


def fields_of(kind: type) -> dict[str, Any]:
    """Return pydantic's description of each field of a dataclass, by name."""
    fields: dict[str, Any] = dict(vars(kind)["__pydantic_fields__"])
    for base in kind.__mro__[1:-1]:  # pydantic does not inherit docstrings
        for name, field in vars(base)["__pydantic_fields__"].items():
            fields[name].description = fields[name].description or field.description
    return fields


def parse_value(field: Any, value: Any) -> Any:
    """Convert a text to a number or boolean if the field takes one and the text is one."""
    kinds = {field.annotation, get_origin(field.annotation), *get_args(field.annotation)}
    if not isinstance(value, str) or kinds & {str, Literal}:
        return value
    for number in (int, float):
        with suppress(ValueError):
            return number(value)
    return {"true": True, "false": False, "null": None}.get(value.lower(), value)


def all_fields(sections: dict[str, type]) -> dict[str, Any]:
    """Return the fields of all sections by their names, such as model.n_layer."""
    return {
        f"{section}.{name}" if section else name: field
        for section, kind in sections.items()
        for name, field in fields_of(kind).items()
    }


def add_flag(parser: Parser, name: str, field: Any) -> None:
    """Add the flag of a field, with the field's docstring as help."""
    choices = get_args(field.annotation)
    note = "" if field.default in (None, "") else f" (default: {field.default})"
    takes: dict[str, Any] = {
        "action": "append" if list[str] in choices else "store",
        "metavar": "|".join(choices) if get_origin(field.annotation) is Literal else "VALUE",
        "type": functools.partial(parse_value, field),
    }
    if field.annotation is bool and "." not in name:  # a command's own flag, such as --dry_run
        takes = {"action": "store_true"}
    about = " ".join((field.description or "").split()).replace("%", "%%") + note
    parser.add_argument(f"--{name}", default=argparse.SUPPRESS, help=about, **takes)


def read_command_line(
    sections: dict[str, type], argv: list[str], usage: str, description: str, positionals: int = 1
) -> tuple[str | None, Values]:
    """Return the positional argument, if there is one, and the values of the given flags.

    Args:
        sections: dataclasses whose fields are flags, by the prefix of the flags.
        positionals: 0 if the command takes no positional argument.

    Raises:
        UserError: for an unknown flag, a flag without a value, and extra arguments.
    """
    fields = all_fields(sections)
    parser = Parser(usage=usage, description=description, allow_abbrev=False)
    for name, field in fields.items():
        add_flag(parser, name, field)
    given, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if word.startswith("-")] or rest[positionals:]
    if unknown:
        name = unknown[0].split("=")[0]
        hint = nearest(name, [f"--{known}" for known in fields])
        raise UserError(f"unknown {name}{hint or '; see --help'}")
    values: Values = {section: {} for section in sections}
    for key, value in vars(given).items():
        section, _, name = key.rpartition(".")
        values[section][name] = value
    return (rest[0] if rest else None), values


def build(kind: type[Options], values: dict[str, Any], prefix: str = "--") -> Options:
    """Make a dataclass from values and defaults.

    Args:
        prefix: text before the name of a field in messages.

    Raises:
        UserError: naming the field whose value is wrong.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        field, message = first_error(error)
        name = field.split(".")[0]  # without the member of a union
        # An error of the whole dataclass begins with the name of a field.
        raise UserError(f"{prefix}{name} {message}" if name else prefix + message) from None


def read_config(values: Values, file: str | None, config: Config = Config()) -> Config:  # noqa: B008
    """Read the config: flags override the file, which overrides the given config.

    Raises:
        UserError: naming the error in the file or the flags.
    """
    if file:
        config = override(config, read_yaml(Path(file)), f"{file}: ")
    return override(config, values, "--")


def override(config: Config, values: Values, prefix: str) -> Config:
    """Replace values of a config.

    `minutes` and `max_steps` both set the length of a run: the last one given counts.

    Args:
        prefix: text before the name of a field in messages.
    """
    train = values.get("train", {})
    if "max_steps" in train:
        if train.get("minutes"):
            raise UserError(f"{prefix}train.max_steps and minutes both set the length; give one")
        values = values | {"train": train | {"minutes": 0.0}}
    plain = dataclasses.asdict(config)
    return Config(
        **{
            section: build(kind, plain[section] | values.get(section, {}), f"{prefix}{section}.")
            for section, kind in SECTIONS.items()
        }
    )


def read_yaml(path: Path) -> Values:
    """Read the values of a config file.

    Raises:
        UserError: naming the file and the error in it.
    """
    if not path.is_file():
        shipped = sorted(map(str, Path("configs").glob("*.yaml")))
        raise UserError(f"there is no config file {path}{nearest(str(path), shipped)}")
    content = path.read_bytes()
    with reading(path, "is not a config; for a text, use --data.source"):
        # This loader reads every scalar as text and ignores tags.
        plain = yaml.load(content, yaml.BaseLoader)
        if not isinstance(plain, dict) or not all(isinstance(x, dict) for x in plain.values()):
            raise ValueError(f"a config has fields in the sections {', '.join(SECTIONS)}")
    fields = all_fields(SECTIONS)
    for section, given in plain.items():
        for name, value in given.items():
            key = f"{section}.{name}"
            if key not in fields:
                raise UserError(f"{path}: unknown key {key}{nearest(key, fields)}")
            given[name] = parse_value(fields[key], value)
    return plain


def nearest(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' if a known word is similar, else an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
