"""Defaults, a YAML file, and flags -> one typed tree of frozen dataclasses.

    python train.py configs/gpt2.yaml --model.n_layer 6

Each config field is a flag, and the docstring under the field is the flag's help. Values are read
as text, and converted to numbers or booleans unless the field is a string.
"""

import argparse
import dataclasses
import difflib
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import (
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from pydantic import ValidationError

from common.errors import UserError, as_user_error
from configs.config import Config, first_error

Options = TypeVar("Options")
# Values by section and name; the section "" has a command's own flags.
Values = dict[str, dict[str, Any]]

SECTIONS: dict[str, type] = get_type_hints(Config)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


class Once(argparse.Action):
    """Stores the value of a command's own flag; a second one is more likely a mistake than a change
    of the first."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: Any = None) -> None:
        if hasattr(namespace, self.dest):
            parser.error(f"{flag} is given twice")
        setattr(namespace, self.dest, values)


class Loader(yaml.BaseLoader):
    """Reads every scalar as text, ignores tags, and rejects a key that is given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise UserError(f"{self.name}: {key} is given twice")
        return super().construct_mapping(node, deep)


def fields_of(kind: type) -> dict[str, Any]:
    """Return pydantic's description of each field of a dataclass, by name."""
    return dict(vars(kind)["__pydantic_fields__"])


def parse_value(field: Any, value: Any) -> Any:
    """Convert a text to a number or boolean if the field takes one and the text is one, and so each
    text of a list."""
    if str in (field.annotation, *get_args(field.annotation)):
        return value
    if isinstance(value, list):
        return [parse_value(field, each) for each in value]
    if not isinstance(value, str):
        return value
    for number in (int, float):
        with suppress(ValueError):
            return number(value)
    return {"true": True, "false": False, "null": None}.get(value.lower(), value)


def add_flag(parser: Parser, name: str, field: Any) -> None:
    """Add the flag of a field, with the field's docstring as help."""
    choices = get_args(field.annotation)
    is_list = any(get_origin(choice) is list for choice in choices)
    note = "" if field.default in (None, "") else f" (default: {field.default})"
    takes: dict[str, Any] = {
        "action": "append" if is_list else "store" if "." in name else Once,
        "metavar": "|".join(choices) if get_origin(field.annotation) is Literal else "VALUE",
    }
    if field.annotation is bool and "." not in name:  # a command's own flag
        takes = {"action": "store_true"}
    about = " ".join((field.description or "").split()).replace("%", "%%") + note
    parser.add_argument(f"--{name}", default=argparse.SUPPRESS, help=about, **takes)


def read_command_line(
    sections: dict[str, type], argv: list[str], usage: str, description: str, positionals: int = 1
) -> tuple[list[str], list[Any], Values]:
    """Return the positional arguments, the dataclasses of a command's own flags, and the texts of
    the given flags.

    Args:
        sections: dataclasses whose fields are flags, by the prefix of the flags. A command's own
            flags have no prefix: their keys are "" and ".".
        positionals: maximum number of positional arguments.

    Raises:
        UserError: for an unknown flag, a flag without a value or with a wrong one, and extra
            arguments.
    """
    fields = {
        f"{section}.{name}".lstrip("."): (section, name, field)
        for section, kind in sections.items()
        for name, field in fields_of(kind).items()
    }
    parser = Parser(usage=usage, description=description, allow_abbrev=False)
    for flag, (*_, field) in fields.items():
        add_flag(parser, flag, field)
    given, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if word[:1] == "-" != word] or rest[positionals:]
    if unknown:
        name = unknown[0].split("=")[0]
        if not name.startswith("-"):
            raise UserError(
                f"one argument too many: {unknown[0]}; put a glob or a prompt in quotes, after its "
                f"flag"
            )
        hint = nearest(name, [f"--{known}" for known in fields])
        raise UserError(f"unknown {name}{hint or '; see --help'}")
    values: Values = {section: {} for section in sections}
    for flag, value in vars(given).items():
        section, name, _ = fields[flag]
        values[section][name] = value
    own: list[Any] = [build(sections[name], values[name]) for name in ("", ".") if name in sections]
    return rest, own, values


class Command(NamedTuple):
    """A command of a program with several."""

    flags: type
    """The dataclass of its flags, whose docstring describes it."""

    do: Callable[..., Any]
    """Called with the words and the flags: None for a word that is omitted, a list for [ANY...]."""

    words: str
    """Its positional arguments, in the usage line: NEEDED, [OPTIONAL], or only [ANY...]."""


def read_subcommand(
    commands: dict[str, Command], argv: list[str], program: str, *shared: type
) -> tuple[str, list[Any], list[Any]]:
    """Return the name of the command, its positional arguments as `Command.do` takes them, its
    flags, and those that it shares.

    Args:
        shared: a dataclass of flags that all commands have, if there are some.

    Raises:
        UserError: for an unknown command, and for too few or too many arguments.
    """
    name, *rest = argv or [""]
    if name not in commands:
        raise UserError(f"name a command: {', '.join(commands)}{nearest(name, commands)}")
    flags, _, words = commands[name]
    usage = f"{program} {name} {words} [--flag VALUE ...]".replace("  ", " ")
    most = sys.maxsize if "..." in words else len(words.split())
    sections = dict(zip(("", "."), (flags, *shared), strict=False))
    given, options, _ = read_command_line(sections, rest, usage, f"{flags.__doc__}.", most)
    if len(given) < len(re.sub(r"\[.*\]", "", words).split()):
        raise UserError(f"{name} takes {words}: {usage}")
    padded = [given] if "..." in words else [*given, *[None] * (most - len(given))]
    return name, padded, options


def build(kind: type[Options], values: dict[str, Any], prefix: str = "--") -> Options:
    """Make a dataclass from values, or the texts of values, and defaults.

    Args:
        prefix: text before the name of a field in messages.

    Raises:
        UserError: naming the field that is unknown, or whose value is wrong.
    """
    fields = fields_of(kind)
    for name in values.keys() - fields.keys():
        raise UserError(f"{prefix}{name} is unknown{nearest(name, fields)}")
    try:
        return kind(**{name: parse_value(fields[name], value) for name, value in values.items()})
    except ValidationError as error:
        field, message = first_error(error)
        name = field.split(".")[0]  # without the member of a union
        # An error of the whole dataclass has no name, and begins with that of a field.
        raise UserError(prefix + f"{name} {message}".lstrip()) from None


def read_config(values: Values, file: str | None, config: Config = Config()) -> Config:  # noqa: B008
    """Read the config: flags override the file, which overrides the given config.

    `minutes` and `max_steps` both set the length of a run. Flags override the file; if one of them
    sets both, `max_steps` wins.

    Raises:
        UserError: naming the error in the file or the flags.
    """
    for prefix, sections in [(f"{file}: ", read_yaml(file)), ("--", values)]:
        plain = dataclasses.asdict(config)
        if "minutes" in sections.get("train", {}):
            plain["train"]["max_steps"] = None
        config = Config(
            **{
                name: build(kind, plain[name] | sections.get(name, {}), f"{prefix}{name}.")
                for name, kind in SECTIONS.items()
            }
        )
    return config


def read_yaml(path: str | None) -> Values:
    """Read the values of a config file, if there is one, as texts.

    Raises:
        UserError: if the file is not a config.
    """
    if not path:
        return {}
    hint = "is not a config; for a text, use --data.source, once for each file or glob"
    with open(path, "rb") as file, as_user_error(path, hint):
        plain = yaml.load(file, Loader)
        if not isinstance(plain, dict) or not all(
            section in SECTIONS and isinstance(fields, dict) for section, fields in plain.items()
        ):
            raise ValueError(f"a config has fields in the sections {', '.join(SECTIONS)}")
    return plain


def nearest(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' if a known word is similar, else an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
