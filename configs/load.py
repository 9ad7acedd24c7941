"""Defaults, a YAML file, and flags -> one typed tree of frozen dataclasses.

    python train.py configs/gpt2.yaml --model.n_layer 6

A field of a config is a flag, and the docstring under it is the flag's help. Whatever stands in a
file or behind a flag is text until the type of its field converts it (`FieldType.convert`).
"""

import argparse
import dataclasses
import difflib
import functools
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import docstring_parser
import yaml

from common.errors import UserError
from common.fields import FieldType, brief, field_types, make
from configs.nanogpt import ours_for
from data.config import DataConfig
from model.config import ModelConfig
from training.config import TrainConfig

Options = TypeVar("Options")
# By section; "" holds a command's own flags.
Values = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Config:
    """The whole config of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


SECTIONS: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}


def flag(section: str, name: str) -> str:
    """The flag of a field."""
    return f"--{section}.{name}" if section else f"--{name}"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        if message.endswith("expected one argument"):
            name = message.split(":")[0]
            message = f"{name} needs a value; write one that begins with a dash as {name}=-..."
        raise UserError(message)


def read_command_line(
    sections: dict[str, type], argv: list[str], usage: str, description: str, words: int = 1
) -> tuple[str | None, Values]:
    """The one word without a flag, if there is one, and the values of the flags that are given.

    Args:
        sections: dataclasses, whose fields are flags, by the prefix of the flags.
        words: 0 where the command takes no word without a flag.

    Raises:
        UserError: for an unknown flag, a value of another type, and further words.
    """
    parser = Parser(usage=usage, description=description, allow_abbrev=False)
    flags: dict[str, FieldType] = {}
    for section, kind in sections.items():
        title, meanings = describe(kind)
        group = parser.add_argument_group(title)
        for name, field_type in field_types(kind).items():
            flags[flag(section, name)] = field_type
            group.add_argument(
                flag(section, name),
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=meanings[name].replace("%", "%%"),
                action="append" if field_type.kind == list[str] | str else "store",
            )
    alone = {name for name, field_type in flags.items() if field_type.kind is bool}
    given, rest = parser.parse_known_args(spell_out(argv, alone))
    for word in rest:
        if word.startswith("-"):
            name = word.split("=")[0]
            hint = nearest(name, flags) or "; see --help"
            raise UserError(ours_for(word, flags) or f"unknown flag {name}{hint}")
    if len(rest) > words:
        most = "one word" if words else "no word"
        raise UserError(f"{most} without a flag expected, got: {' '.join(rest)}")
    values: Values = {section: {} for section in sections}
    for key, value in vars(given).items():
        section, _, name = key.rpartition(".")
        if isinstance(value, list) and len(value) == 1:  # a flag that is given once
            (value,) = value
        values[section][name] = convert(flags[f"--{key}"], value, f"--{key}")
    return (rest[0] if rest else None), values


@functools.cache
def describe(kind: type) -> tuple[str, dict[str, str]]:
    """What the docstrings say of a dataclass and of each of its fields."""
    docs = [docstring_parser.parse_from_object(k) for k in kind.__mro__[:-1]]  # its bases' too
    meanings = {p.arg_name: p.description or "" for doc in docs for p in doc.params}
    for f in dataclasses.fields(kind):
        field_type = field_types(kind)[f.name]
        limits = f" in {field_type.limits.interval}" if field_type.limits else ""
        default = "" if f.default in (None, "") else f"; default: {f.default}"
        meanings[f.name] = f"{' '.join(meanings[f.name].split())} ({field_type}{limits}{default})"
    return (docs[0].short_description or "").rstrip("."), meanings


def spell_out(argv: list[str], alone: Container[str]) -> list[str]:
    """The command line, with `=true` added to flags that may stand alone, where they do."""
    return [
        f"{word}=true" if word in alone and after.lower() not in ("true", "false") else word
        for word, after in zip(argv, [*argv[1:], ""], strict=False)
    ]


def convert(field_type: FieldType, value: Any, where: str) -> Any:
    """A value as the type of a field."""
    try:
        return field_type.convert(value)
    except ValueError as error:
        raise UserError(f"{where} {error}") from None


def build(kind: type[Options], values: dict[str, Any], section: str = "") -> Options:
    """A dataclass of values that have the right types already, and of defaults.

    Raises:
        UserError: naming the flag, where the dataclass refuses them.
    """
    try:
        return kind(**values)
    except ValueError as error:  # begins with the name of a field
        raise UserError(flag(section, str(error))) from None


def read_config(values: Values, file: str | None, base: Config | None = None) -> Config:
    """The config from the flags, over a file, over `base` or the defaults.

    `minutes` and `max_steps` both say how long a run is: the last that is given counts.

    Raises:
        UserError: naming what is wrong in the file or the flags.
    """
    plain = to_plain(base) if base else {section: {} for section in SECTIONS}
    for layer in (read_yaml(Path(file)) if file else {}, values):
        plain = {section: plain[section] | layer.get(section, {}) for section in SECTIONS}
        train = layer.get("train", {})
        if "max_steps" in train:
            if train.get("minutes"):
                where = f"{file}: train." if layer is not values else "--train."
                raise UserError(f"{where}max_steps and minutes both say how long: give one")
            plain["train"]["minutes"] = 0.0
    return Config(**{name: build(kind, plain[name], name) for name, kind in SECTIONS.items()})


def to_plain(config: Config) -> Values:
    """The config as nested dictionaries, for YAML and JSON."""
    return dataclasses.asdict(config)


def from_plain(plain: Any, where: str) -> Config:
    """The config that `to_plain` made plain: every field must be there, and no other.

    Raises:
        UserError: naming `where` and the field.
    """
    try:
        return make(Config, plain)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


class Loader(yaml.BaseLoader):
    """YAML in which every scalar is text, tags mean nothing, and no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in keys.most_common(1):
            if times > 1:
                raise ValueError(f"{key} is given twice")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Values:
    """The values of a config file.

    Raises:
        UserError: naming the file and what is wrong in it.
    """
    if not path.is_file():
        shipped = sorted(f"configs/{p.name}" for p in Path(__file__).parent.glob("*.yaml"))
        raise UserError(f"there is no config file {path}{nearest(str(path), shipped)}")
    try:
        plain = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a config: {' '.join(str(error).split())}") from None
    if not isinstance(plain, dict):
        raise UserError(f"{path}: a config has the sections {', '.join(SECTIONS)}, this has none")
    values: Values = {}
    for section, given in plain.items():
        if section not in SECTIONS:
            raise UserError(f"{path}: unknown section {section}{nearest(section, SECTIONS)}")
        if not isinstance(given, dict):
            raise UserError(f"{path}: {section} should hold fields, not {brief(given)}")
        types, values[section] = field_types(SECTIONS[section]), {}
        for name, value in given.items():
            if name not in types:
                raise UserError(f"{path}: unknown key {section}.{name}{nearest(name, types)}")
            where = f"{path}: {section}.{name}"
            values[section][name] = convert(types[name], value, where)
    return values


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' for a word close to a known one."""
    close = difflib.get_close_matches(word, known := list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
