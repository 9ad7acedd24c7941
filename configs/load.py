"""File + command line -> one typed tree of frozen dataclasses.

`jsonargparse` knows the types, reads the flags and writes `--help`. Added here: the file comes
first wherever it stands, nothing in it may be null or stand twice, an unknown key is answered
with the nearest known one, and every mistake is one line.
"""

import dataclasses
import difflib
import functools
import re
from argparse import ArgumentError
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, Namespace

from common.errors import UserError
from data.config import DataConfig
from model.config import ModelConfig
from training.config import TrainConfig


@dataclass(frozen=True)
class Config:
    """The whole config of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


SECTIONS: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}

Fields = TypeVar("Fields")


# --- the command line --------------------------------------------------------------------------


class Parser(ArgumentParser):
    """A parser that remembers the type of each flag, for its messages."""

    types: dict[str, Any]


def make_parser(sections: dict[str, type], usage: str = "", description: str = "") -> Parser:
    """A parser whose flags are the fields of dataclasses, and whose help is their docstrings.

    Args:
        sections: dataclasses by the prefix of their flags; a command's own have the prefix "".
    """
    return parser_of(tuple(sections.items()), usage, description)


@functools.cache  # making it takes ten times as long as using it, which leaves it as it is
def parser_of(sections: tuple[tuple[str, type], ...], usage: str, description: str) -> Parser:
    """See `make_parser`."""
    parser = Parser(
        usage=usage,
        description=description,
        exit_on_error=False,
        allow_abbrev=False,
        default_env=False,
    )
    parser.types = {}
    for section, kind in sections:
        title, meanings = read_docstrings(kind)
        group = parser.add_argument_group(title or section)
        for f, hint in fields_of(kind):
            key = f"{section}.{f.name}" if section else f.name
            parser.types[key] = hint
            meaning = " ".join(meanings[f.name].split())
            group.add_argument(f"--{key}", type=hint, default=f.default, help=meaning)
    return parser


@functools.cache
def read_docstrings(kind: type) -> tuple[str, dict[str, str]]:
    """What a dataclass is, and what its fields mean, those of its bases too."""
    docs = [docstring_parser.parse_from_object(k) for k in kind.__mro__[:-1]]  # without object
    meanings = {param.arg_name: param.description or "" for doc in docs for param in doc.params}
    return (docs[0].short_description or "").rstrip("."), meanings


def fields_of(kind: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    """The fields of a dataclass, each with its type; a field that may be None is of its other type.

    (None is how a flag that was not given looks, not something that can be given.)
    """
    hints = get_type_hints(kind)
    pairs = []
    for f in dataclasses.fields(kind):
        choices = [choice for choice in get_args(hints[f.name]) if choice is not NoneType]
        optional = NoneType in get_args(hints[f.name])
        pairs.append((f, choices[0] if optional else hints[f.name]))
    return pairs


def split_positional(argv: list[str], most: int = 1) -> tuple[list[str], list[str]]:
    """Take the words without a flag, `most` at most, out of a command line, wherever they stand.

    A flag takes the word after it as its value, unless that begins with two dashes; they come back
    joined, as `--flag=value`, so that a value may begin with one.

    Raises:
        UserError: for more such words.
    """
    positional: list[str] = []
    flags: list[str] = []
    waiting = False  # for the value of the flag before
    for word in argv:
        if waiting and not word.startswith("--"):
            flags[-1] += f"={word}"
            waiting = False
        elif word.startswith("-"):
            flags.append(word)
            waiting = "=" not in word and word not in ("-h", "--help")
        else:
            positional.append(word)
    if len(positional) > most:
        count = {0: "no word", 1: "one word", 2: "two words"}.get(most, f"{most} words")
        limit = " at most" if most else ""
        raise UserError(f"{count} without a flag{limit}, got: {' '.join(positional)}")
    return positional, flags


def read_flags(parser: Parser, flags: list[str], base: Namespace | None = None) -> dict[str, Any]:
    """The values of the flags that were given, over `base`, sections nested.

    A flag that is true or false is true when it stands alone.

    Raises:
        UserError: for a flag that does not exist or a value of the wrong type.
    """
    alone = {f"--{key}" for key, hint in parser.types.items() if hint is bool}
    flags = [f"{flag}=true" if flag in alone else flag for flag in flags]
    try:
        values: dict[str, Any] = parser.parse_args(flags, namespace=base, defaults=False).as_dict()
        return values
    except (ArgumentError, OverflowError) as error:
        raise UserError(one_line(str(error), parser)) from None


def read_config(
    parser: Parser, flags: list[str], file: str | None, base: Config | None = None
) -> Config:
    """What flags, over a file, over `base` or the defaults make.

    Raises:
        UserError: naming what is wrong in the file or the flags.
    """
    given = typed(parser, to_plain(base), "the run's config") if base else None
    if file is not None:
        given = typed(parser, read_yaml(Path(file)), file, given)
    return build_config(read_flags(parser, flags, given))


def typed(
    parser: Parser, plain: dict[str, Any], where: str, base: Namespace | None = None
) -> Namespace:
    """Nested values, as the types of their flags, over `base`.

    Raises:
        UserError: naming `where` and the first value of the wrong type.
    """
    try:
        # The defaults are the dataclasses'. The parser's are the same, and filling them in and
        # checking them is most of what reading a config would take.
        return parser.parse_object(plain, base, defaults=False)
    except (ArgumentError, OverflowError) as error:
        raise UserError(f"{where}: {one_line(str(error), parser)}") from None


def build(kind: type[Fields], values: dict[str, Any]) -> Fields:
    """A dataclass of those of the values that are its fields; they have the right types already.

    Raises:
        UserError: where the dataclass refuses them.
    """
    names = [f.name for f, _ in fields_of(kind)]
    try:
        return kind(**{name: values[name] for name in names if name in values})
    except ValueError as error:
        raise UserError(str(error)) from None


def build_config(values: dict[str, Any]) -> Config:
    """The config of nested values and defaults; for its errors see `build`."""
    return Config(**{name: build(kind, values.get(name, {})) for name, kind in SECTIONS.items()})


# --- plain data: YAML files, and the headers of checkpoints --------------------------------------


def to_plain(config: Config) -> dict[str, Any]:
    """The config as nested dictionaries, for YAML and JSON."""
    return dataclasses.asdict(config)


def from_plain(plain: dict[str, Any], where: str) -> Config:
    """The config that `to_plain` made plain: every field must be there, and no other.

    Raises:
        UserError: naming `where` and the field.
    """
    check_keys(plain, where)
    for section, kind in SECTIONS.items():
        for f, _ in fields_of(kind):
            if f.name not in plain.get(section, {}):
                raise UserError(f"{where}: {section}.{f.name} is missing")
    return build_config(typed(make_parser(SECTIONS), plain, where).as_dict())


def read_yaml(path: Path) -> dict[str, Any]:
    """A config file as nested dictionaries with known keys and no nulls.

    Raises:
        UserError: naming the file and what is wrong in it.
    """
    if not path.is_file():
        shipped = sorted(f"configs/{p.name}" for p in Path(__file__).parent.glob("*.yaml"))
        raise UserError(f"there is no config file {path}{nearest(path, shipped)}")
    try:
        text = path.read_text(encoding="utf-8")
        check_events(yaml.parse(text, yaml.SafeLoader))
        check_twice(yaml.compose(text, yaml.SafeLoader), str(path))
        plain = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path} is not a YAML file: {' '.join(str(error).split())}") from None
    check_keys(plain, str(path))
    return dict(plain)


def check_events(events: Iterable[yaml.Event]) -> None:
    """Refuse what a config has no use for, and what can be small in a file and endless to read."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > 3:
            raise ValueError("a config has no use for aliases and for lists in lists")


def check_twice(node: yaml.Node | None, where: str) -> None:
    """Refuse a key that stands twice in one mapping; YAML would let the last one win."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if str(key.value) in seen:
                raise UserError(f"{where}: {key.value} is given twice")
            seen.add(str(key.value))
            check_twice(value, where)


def check_keys(plain: Any, where: str) -> None:
    """Refuse what is not a mapping of sections, unknown keys, and nulls."""
    if not isinstance(plain, dict):
        raise UserError(f"{where}: a config has the sections {', '.join(SECTIONS)}, this has none")
    for section, values in plain.items():
        if section not in SECTIONS:
            raise UserError(f"{where}: unknown section {section}{nearest(section, SECTIONS)}")
        if not isinstance(values, dict):
            raise UserError(f"{where}: {section} should hold fields, not {values!r}")
        known = [f.name for f, _ in fields_of(SECTIONS[section])]
        for key, value in values.items():
            if key not in known:
                raise UserError(f"{where}: unknown key {section}.{key}{nearest(key, known)}")
            if value is None:
                raise UserError(f"{where}: {section}.{key} is null; leave it out for its default")


# --- one line for a mistake ----------------------------------------------------------------------


def nearest(word: Any, known: Iterable[str]) -> str:
    """'; did you mean ...?' for a word close to a known one, or else what is known."""
    known = list(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def one_line(message: str, parser: Parser) -> str:
    """A message of `jsonargparse` in the words of this project."""
    if match := re.match(r"unrecognized arguments: ([^\s=]+)", message):
        close = difflib.get_close_matches(match[1], [f"--{key}" for key in parser.types], n=1)
        hint = f"did you mean {close[0]}?" if close else "see --help"
        return f"unknown flag {match[1]}; {hint}"
    if match := re.match(r"argument ([^\s/]+)\S*: expected one argument", message):
        return f"{match[1]} needs a value (one that begins with -- as {match[1]}=--...)"
    key = re.search(r'Parser key "([\w.]+)"', message)
    value = re.search(r"(?:Got|Given) value: (.*)\Z", message, re.DOTALL)
    if key and value:
        given = "null" if value[1] == "None" else repr(value[1])
        return f"--{key[1]} must be {expected(parser.types[key[1]])}, got {given}"
    return " ".join(message.split())


def expected(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, "text or a list of texts")
