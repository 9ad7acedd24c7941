"""Configs are read from defaults, a file and flags; every mistake is a one-line error."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

import sample
import train
from benchmarks import recipe
from common.errors import UserError
from configs.config import Config, DataConfig, TrainConfig
from configs.load import (
    SECTIONS,
    fields_of,
    read_command_line,
    read_config,
)
from data.tokenizer import KINDS
from lens.report import Report
from model.generate import Sampling
from model.gpt import ACTIVATIONS
from training.folder import save_config
from training.optim import OPTIMIZERS, SCHEDULES


def parse(*argv: str, base: Config = Config()) -> Config:  # noqa: B008
    words, _, values = read_command_line({"": train.Options} | SECTIONS, list(argv), "", "")
    return read_config(values, next(iter(words), None), base)


def options(*argv: str) -> Any:
    """Return the flags of sample.py."""
    sections = {"": sample.Options, ".": Sampling}
    _, (own, sampling), _ = read_command_line(sections, list(argv), "", "", 0)
    return SimpleNamespace(**vars(own), **vars(sampling))


FIELDS = {
    f"{section}.{name}": (section, name, field)
    for section, kind in SECTIONS.items()
    for name, field in fields_of(kind).items()
}
# Values of the fields that depend on other fields, or have a small range.
DEPENDENT: dict[str, tuple[Any, Any, Any]] = {
    "n_head": (8, 12, 24),
    "n_kv_head": (4, 2, 1),
    "mlp_ratio": (2, 3, 10),
    "n_embd": (480, 960, 1440),
    "ngrams": (5, 7, 11),
    "head_bias": (False, True, False),
    "tie_embeddings": (False, True, False),
    "max_steps": (11, 22, 33),
    "batch_size": (180, 540, 90),
    "gradient_accumulation_steps": (9, 18, 6),
}


def three_values(key: str) -> tuple[Any, Any, Any]:
    """Return values for a base config, a file, and a flag. Each differs from the one that it
    overrides, the first from the default, and numbers from those of other fields."""
    section, name, field = FIELDS[key]
    number, kind = list(FIELDS).index(key), field.annotation
    if name in DEPENDENT:
        return DEPENDENT[name]
    if kind is bool or get_origin(kind) is Literal:
        default = getattr(SECTIONS[section](), name)
        others = [choice for choice in get_args(kind) or (True, False) if choice != default]
        return others[0], [default, *others[1:]][-1], others[0]
    if "int" in str(kind):
        return 300 + number, 400 + number, 500 + number
    if "float" in str(kind):
        return 0.001 * (1 + number), 0.001 * (101 + number), 0.001 * (201 + number)
    return f"{name}: [1", f"{name}: {{2", f"- &{name}"


def unusual() -> Config:
    """Return a config in which no field has its default, as far as the choices allow."""
    first = {key: three_values(key)[0] for key in FIELDS}
    return Config(
        **{
            section: kind(**{name: first[f"{section}.{name}"] for name in fields_of(kind)})
            for section, kind in SECTIONS.items()
        }
    )


def test_every_field_is_read_and_flags_override_the_file(workplace: Path) -> None:
    """Other fields keep the values of the base config, and YAML round-trips."""
    base = unusual()
    for key, (section, name, _) in FIELDS.items():
        _, first, second = three_values(key)
        (workplace / "some.yaml").write_text(yaml.safe_dump({section: {name: first}}))
        flag = str(second).lower() if isinstance(second, bool) else str(second)
        from_file = read_config({}, "some.yaml", base)
        overridden = parse(f"--{key}={flag}", "some.yaml", base=base)
        for config, value in ((from_file, first), (overridden, second)):
            expected = dataclasses.asdict(base)
            assert expected[section][name] != first != second, key
            if name == "minutes":
                expected["train"]["max_steps"] = None
            expected[section][name] = value
            assert dataclasses.asdict(config) == expected
            save_config(workplace, config, "a comment")
            assert read_config({}, "config.yaml") == config


TABLES: dict[str, dict[str, Any]] = {
    "data.tokenizer": {kind: KINDS[kind] for kind in KINDS if kind != "word"},  # of tasks alone
    "model.activation": ACTIVATIONS,
    "train.optimizer": OPTIMIZERS,
    "train.schedule": SCHEDULES,
}


@pytest.mark.parametrize("key", TABLES)
def test_choices_are_those_of_the_table_that_a_field_names(key: str) -> None:
    assert {*get_args(FIELDS[key][2].annotation)} == {*TABLES[key]}


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example("[" * 10_000)
@example("&a [*b,*b]")
@example("%s %(x)s {0} ${HOME} `touch exploded`")
@example("null")
def test_text_values_are_taken_literally(workplace: Path, text: str) -> None:
    assume("\\n" not in text)  # which a separator must not have
    assert options(f"--prompt={text}").prompt == text
    assert parse(f"--data.source={text}", f"--data.separator={text}").data == DataConfig(
        source=text, separator=text
    )
    config = Config(DataConfig(source=[text, "b"], separator=text), train=TrainConfig(max_steps=9))
    save_config(workplace, config, "")
    assert parse("config.yaml") == config


def test_backslash_in_a_separator_is_not_a_newline() -> None:
    with pytest.raises(UserError, match=r"has a backslash and an n; in bash, a newline is \$'"):
        parse(r"--data.separator=\n")


def test_flags_may_be_switches_or_repeated() -> None:
    for words in (["--changes", "a.yaml"], ["a.yaml", "--changes"]):
        given, (own,), _ = read_command_line({"": recipe.Options}, words, "", "")
        assert given == ["a.yaml"] and own.changes
    assert parse("--data.source", "a", "--data.source=b").data.source == ["a", "b"]
    assert parse("--model.n_layer", "2", "--model.n_layer=3").model.n_layer == 3
    _, (own,), _ = read_command_line({"": Report}, ["--source=a", "--source=b"], "", "")
    assert own.source == ["a", "b"]
    assert options("--prompt=-x").prompt == "-x" and options("--top_k=null").top_k is None


def test_values_outside_their_range_are_rejected() -> None:
    for words in ("num_samples=1000", "seed=0", "top_p=1", "temperature=1e300"):
        name, value = words.split("=")
        assert getattr(options(f"--{words}"), name) == float(value)
    assert parse("--data.test_fraction=0.899").data.test_fraction == 0.899
    wrong = "seed=-1 num_samples=1.0 num_samples= num_samples=null num_samples=1001 "
    wrong += "temperature=nan temperature=inf top_p=0 top_k=0 checkpoint=Last data.test_fraction=1"
    for words in wrong.split():
        name = words.split("=")[0]
        with pytest.raises(UserError, match=rf"^--{name} must be .*, got "):
            (parse if "." in name else options)(f"--{words}")


def test_later_of_minutes_and_max_steps_sets_the_length(workplace: Path) -> None:
    """Flags come after files, and files come after the base config. If one of them sets both,
    max_steps wins."""
    (workplace / "steps.yaml").write_text("train: {max_steps: 7}")
    (workplace / "minutes.yaml").write_text("train: {minutes: 3}")
    (workplace / "both.yaml").write_text("train: {minutes: 3, max_steps: 7}")
    for words, minutes, max_steps in (
        ([], 1, None),
        (["steps.yaml"], 1, 7),
        (["minutes.yaml", "--train.max_steps=7"], 3, 7),
        (["steps.yaml", "--train.minutes=3"], 3, None),
        (["both.yaml"], 3, 7),
        (["--train.max_steps=7", "--train.minutes=3"], 3, 7),
    ):
        base = parse(*words)
        assert (base.train.minutes, base.train.max_steps) == (minutes, max_steps)
        assert parse("--train.max_steps=9", base=base).train.max_steps == 9
        assert parse("minutes.yaml", base=base).train.max_steps is None


MISTAKES = [  # flags, or the text of a config file, and part of the error
    ("--mod.n_layer=3", "unknown --mod.n_layer; did you mean --model.n_layer?"),
    ("--model.n_layer", "--model.n_layer: expected one argument"),
    ("--model.n_embd=30", "--model.n_embd 30 must be divisible by n_head 4"),
    ("--model.n_embd=4 --model.positions=none", "--model.n_embd / n_head must be at least 2"),
    ("--model.head_bias=true --model.tie_embeddings=true", "--model.head_bias must be false"),
    ("--train.gradient_accumulation_steps=7", "must be divisible by gradient_accumulation_steps 7"),
    ("--data.val_fraction=0.5 --data.test_fraction=0.5", "leave nothing to train on"),
    ("model: {n_layer: 0}", "bad.yaml: model.n_layer must be greater than or equal to 1, got 0"),
    ("model: {n_lay: 1}", "bad.yaml: model.n_lay is unknown; did you mean n_layer?"),
    ("model:\n  n_layer: 2\n  n_head: 2\n  n_layer: 3", "bad.yaml: n_layer is given twice"),
    ("!!python/object/apply:os.system ['touch exploded']\n", "fields in the sections data, model,"),
    ("model: &a {n_layer: *a}\n", "bad.yaml is not a config; for a text, use --data.source, "),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistake_is_a_one_line_error(workplace: Path, text: str, message: str) -> None:
    (workplace / "bad.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        parse(*(text.split() if text.startswith("--") else ["bad.yaml"]))
    said = str(error.value)
    assert message in said and len(said) < 500 and "\n" not in said
    assert not (workplace / "exploded").exists()


def test_help_describes_every_field_and_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for read in (parse, options):
        with pytest.raises(SystemExit, match="0"):
            read("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--temperature VALUE Divide the logits" in text
    for key, (section, name, field) in FIELDS.items():
        default = getattr(SECTIONS[section](), name)
        entry = re.split(r" --\w+\.", text.split(f"--{key} ")[1])[0]
        assert " ".join(field.description.split()) in entry and len(entry) > 25
        assert default in (None, "") or f"default: {default})" in entry
