"""Configs are read from defaults, a file and flags; every mistake is a one-line error."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from common.errors import UserError
from common.fields import STRICT, Count, Fraction, NonNegative
from configs.load import (
    SECTIONS,
    Config,
    build,
    fields_of,
    read_command_line,
    read_config,
)
from data.config import DataConfig
from model.config import ModelConfig
from run.folder import save_config
from tests.conftest import ROOT
from training.config import TrainConfig


@dataclass(frozen=True, config=STRICT)
class Base:
    """The run"""

    prompt: str | None = None
    """A text."""

    maybe: Count | None = None
    """Perhaps a number."""


@dataclass(frozen=True, config=STRICT)
class Options(Base):
    """The run"""

    alone: bool = False
    """A flag."""

    count: Count = 1
    """A number, 100% of it."""

    length: NonNegative = 0.0
    """A length."""

    fraction: Fraction = 0.0
    """A fraction."""

    choice: Literal["a", "b"] = "a"
    """A choice."""

    open_: Annotated[float, Field(gt=0, le=1)] = 1.0
    """An open range."""


def parse(*argv: str, base: Config = Config()) -> Config:  # noqa: B008
    word, values = read_command_line({"": Options} | SECTIONS, list(argv), "usage", "about")
    return read_config(values, word, base)


def options(*argv: str) -> Options:
    return build(Options, read_command_line({"": Options}, list(argv), "usage", "about", 0)[1][""])


FIELDS = {
    f"{section}.{name}": (section, name, field)
    for section, kind in SECTIONS.items()
    for name, field in fields_of(kind).items()
}


def other_values(section: str, name: str, field: Any) -> tuple[Any, Any]:
    """Return two valid values of a field that differ from its default."""
    default, kind = getattr(SECTIONS[section](), name), field.annotation
    if get_origin(kind) is Literal:
        choices = [choice for choice in get_args(kind) if choice != default]
        return choices[0], choices[-1]
    if kind is bool:
        return not default, not default
    if "float" in str(kind):
        return 1e-7, 0.5
    if kind is int:
        doubled = 2 * (default or 2)  # keeps divisibility
        periods = {"repeat_max_period": (16, 20), "repeat_min_period": (4, 16), "n_head": (8, 2)}
        return periods.get(name, (doubled, 2 * doubled))
    return f"{name}: [1", "- &a"


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_is_read_and_flags_override_the_file(workplace: Path, key: str) -> None:
    """Other fields keep the values of the base config, and JSON and YAML round-trip."""
    section, name, field = FIELDS[key]
    first, second = other_values(section, name, field)
    model = ModelConfig() if name in ("n_head", "n_embd") else ModelConfig(n_embd=96)
    base = Config(model=model, train=TrainConfig(minutes=0.0))

    def check(config: Config, value: Any) -> None:
        expected = dataclasses.asdict(base)
        expected[section][name] = value
        assert dataclasses.asdict(config) == expected
        assert TypeAdapter(Config).validate_json(json.dumps(expected)) == config
        if name == "minutes":
            del expected["train"]["max_steps"]  # a file may set only one of the two
        (workplace / "config.yaml").write_text(yaml.safe_dump(expected, sort_keys=False))
        assert parse("config.yaml") == config

    (workplace / "some.yaml").write_text(yaml.safe_dump({section: {name: first}}))
    check(parse("some.yaml", base=base), first)
    text = str(second).lower() if isinstance(second, bool) else str(second)
    check(parse(f"--{key}={text}", "some.yaml", base=base), second)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example("[" * 10_000)
@example("&a [*b,*b]")
@example("%s %(x)s {0} ${HOME} `touch exploded`")
@example("null")
def test_text_values_are_taken_literally(workplace: Path, text: str) -> None:
    assert options(f"--prompt={text}").prompt == text
    assert parse(f"--data.source={text}", f"--data.separator={text}").data == DataConfig(
        source=text, separator=text
    )
    config = Config(DataConfig(source=[text, "b"], separator=text), train=TrainConfig(minutes=0.0))
    save_config(workplace, config, "")
    assert parse("config.yaml") == config


def test_flags_may_be_switches_or_repeated() -> None:
    for words in (["--alone", "a-run"], ["a-run", "--alone"]):
        word, values = read_command_line({"": Options}, words, "", "")
        assert word == "a-run" and values[""] == {"alone": True}
    assert not options().alone
    assert parse("--data.source", "a", "--data.source=b").data.source == ["a", "b"]
    assert parse("--data.source=a").data.source == "a"
    assert parse("--model.n_layer", "2", "--model.n_layer=3").model.n_layer == 3
    assert options("--prompt=-x").prompt == "-x" and options("--maybe=null").maybe is None
    with pytest.raises(UserError, match="unknown a; see"):
        options("a")


def test_values_outside_their_range_are_rejected() -> None:
    for words in ("count=1", "fraction=0.999", "length=1e300", "open_=1", "length=3", "maybe=2"):
        name, value = words.split("=")
        assert getattr(options(f"--{words}"), name) == float(value)
    wrong = "count=0 count=1.0 count=x count= count=9999999999999999999 count=null fraction=1"
    wrong += " fraction=-1e-9 length=nan length=inf length=-1 length=1,5 open_=0 open_=1.01"
    wrong += " maybe=0 maybe=none choice=c choice=A"
    for words in wrong.split():
        name = words.split("=")[0]
        with pytest.raises(UserError, match=rf"^--{name} must be .*, got "):
            options(f"--{words}")


def test_later_of_minutes_and_max_steps_sets_the_length(workplace: Path) -> None:
    """Flags come after files, and files come after the base config."""

    def length(*argv: str, **base: Config) -> tuple[float, int]:
        train = parse(*argv, **base).train
        return train.minutes, train.max_steps

    (workplace / "steps.yaml").write_text("train: {minutes: 0.0, max_steps: 7}")
    (workplace / "minutes.yaml").write_text("train: {minutes: 3}")
    assert length() == (1, 600)
    assert length("--train.minutes=0") == (0, 600)
    for steps in (["steps.yaml"], ["minutes.yaml", "--train.max_steps=7"]):
        run = parse(*steps)
        assert length(base=run) == (0, 7) and length("--train.max_steps=9", base=run) == (0, 9)
        assert length("--train.minutes=2", base=run)[0] == 2
        assert length("--train.minutes=2", "--train.max_steps=9", base=run) == (0, 9)
    assert length("minutes.yaml")[0] == length("steps.yaml", "--train.minutes=3")[0] == 3


BAD_FLAGS = [
    ("--mod.n_layer=3", "unknown --mod.n_layer; did you mean --model.n_layer?"),
    ("--model.n_layer", "--model.n_layer: expected one argument"),
    ("--model.n_embd=30", "--model.n_embd 30 must be divisible by n_head 4"),
    ("--model.head_bias=true --model.tie_embeddings=true", "--model.head_bias must be false"),
    ("--model.n_embd=12", "--model.n_embd / n_head must be even for rotary positions"),
    ("--train.gradient_accumulation_steps=7", "must be divisible by gradient_accumulation_steps 7"),
    ("--data.val_fraction=0.5 --data.test_fraction=0.5", "leave nothing to train on"),
]


BAD_FILES = [
    ("model: {n_layer: 0}", "bad.yaml: model.n_layer must be greater than or equal to 1, got 0"),
    ("model: {n_lay: 1}", "bad.yaml: model.n_lay is unknown; did you mean n_layer?"),
    ("model: 3\n", "a config has fields in the sections"),
    ("", "a config has fields in the sections data, model, train"),
    ("!!python/object/apply:os.system ['touch exploded']\n", "a config has fields"),
    ("model: &a {n_layer: *a}\n", "bad.yaml is not a config; for a text, use --data.source: "),
    ("train:\n  compile: !!bool maybe\n", "train.compile must be a valid boolean, got 'maybe'"),
]


MISTAKES = [("", *bad) for bad in BAD_FLAGS] + [(text, "bad.yaml", why) for text, why in BAD_FILES]
MISTAKES += [("model: {n_layer: 2}", "bad.yaml --model.n_layer=0", "--model.n_layer must be")]


@pytest.mark.parametrize(("text", "words", "message"), MISTAKES, ids=lambda part: part[:40])
def test_mistake_is_a_one_line_error(workplace: Path, text: str, words: str, message: str) -> None:
    (workplace / "bad.yaml").write_text(text)
    (workplace / "configs").symlink_to(ROOT / "configs")
    with pytest.raises(UserError) as error:
        parse(*words.split())
    said = str(error.value)
    assert message in said and (words in said or words != "bad.yaml")
    assert len(said) < 500 and "\n" not in said and not (workplace / "exploded").exists()


def test_help_describes_every_field_and_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse("--help")
    assert exit_.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--prompt VALUE A text." in text and "100% of it" in text  # an inherited field
    for key, (section, name, field) in FIELDS.items():
        default = getattr(SECTIONS[section](), name)
        entry = re.split(r" --\w+\.", text.split(f"--{key} ")[1])[0]
        assert " ".join(field.description.split()) in entry and len(entry) > 25
        assert default in (None, "") or f"default: {default})" in entry
