"""Defaults, then the file, then the flags; every mistake is one line that names its place."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import sample
import train
from common.errors import UserError
from common.fields import Checked, FieldType, field_types
from configs.load import (
    SECTIONS,
    Config,
    build,
    from_plain,
    read_command_line,
    read_config,
    to_plain,
)
from configs.nanogpt import OURS, SAMPLING
from data.config import DataConfig
from model.config import ModelConfig
from training.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Options(Checked):
    """The run"""

    prompt: str | None = None
    """A text."""

    alone: bool = False
    """A flag."""


def parse(*argv: str, base: Config | None = None) -> Config:
    word, values = read_command_line({"": Options} | SECTIONS, list(argv), "usage", "about")
    return read_config(values, word, base)


def options(*argv: str) -> Options:
    return build(Options, read_command_line({"": Options}, list(argv), "usage", "about", 0)[1][""])


FIELDS: dict[str, tuple[str, str, FieldType]] = {
    f"{section}.{name}": (section, name, field)
    for section, kind in SECTIONS.items()
    for name, field in field_types(kind).items()
}


def other_values(section: str, name: str, field: FieldType) -> tuple[Any, Any]:
    """Two valid values of a field, other than its default."""
    default = getattr(SECTIONS[section](), name)
    if get_origin(field.kind) is Literal:
        choices = [choice for choice in get_args(field.kind) if choice != default]
        return choices[0], choices[-1]
    if field.kind is bool:
        return not default, not default
    if field.kind is float:
        return 1e-7, 0.5
    if field.kind is int:
        doubled = 2 * (default or 2)  # keeps what must be divisible
        periods = {"repeat_max_period": (16, 20), "repeat_min_period": (4, 16), "n_head": (8, 2)}
        return periods.get(name, (doubled, 2 * doubled))
    return f"{name}: [1", "- &a"


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_is_read_from_file_and_flag_and_the_flag_wins(
    workplace: Path, key: str
) -> None:
    """Over a config whose other fields stay as they are; and it comes back from JSON and YAML."""
    section, name, field = FIELDS[key]
    first, second = other_values(section, name, field)
    model = ModelConfig() if name in ("n_head", "n_embd") else ModelConfig(n_embd=96)
    base = Config(model=model, train=TrainConfig(minutes=0.0))

    def check(config: Config, value: Any) -> None:
        expected = to_plain(base)
        expected[section][name] = value
        assert to_plain(config) == expected
        assert from_plain(json.loads(json.dumps(expected)), "here") == config
        if name == "minutes":
            del expected["train"]["max_steps"]  # a file says how long in one way
        (workplace / "config.yaml").write_text(yaml.safe_dump(expected, sort_keys=False))
        assert parse("config.yaml") == config

    (workplace / "some.yaml").write_text(yaml.safe_dump({section: {name: first}}))
    check(parse("some.yaml", base=base), first)
    text = str(second).lower() if isinstance(second, bool) else str(second)
    check(parse(f"--{key}={text}", "some.yaml", base=base), second)
    if not text.startswith("-"):  # such a value needs the =
        check(parse("some.yaml", f"--{key}", text, base=base), second)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
@example("[" * 10_000)
@example("&a [*b,*b]")
@example("!!bool x")
@example("0x1F")
@example("null")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_is_text(workplace: Path, text: str) -> None:
    assert options(f"--prompt={text}").prompt == text
    assert parse(f"--data.source={text}", f"--data.separator={text}").data == DataConfig(
        source=text, separator=text
    )
    plain = {"data": {"source": [text, "b"], "separator": text}}
    (workplace / "text.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    assert parse("text.yaml").data == DataConfig(source=[text, "b"], separator=text)


def test_a_flag_may_stand_alone_or_several_times() -> None:
    assert options("--alone").alone and options("--alone=true").alone
    assert not options("--alone", "false").alone
    word, values = read_command_line({"": Options}, ["--alone", "a-run"], "", "")
    assert word == "a-run" and values[""] == {"alone": True}
    assert parse("--data.source", "a", "--data.source=b").data.source == ["a", "b"]
    assert parse("--model.n_layer", "2", "--model.n_layer=3").model.n_layer == 3
    assert options("--prompt=-x").prompt == "-x" and options("--prompt", "- x").prompt == "- x"
    with pytest.raises(UserError, match="no word without a flag expected, got: a"):
        options("a")


def test_how_long_is_what_was_said_last(workplace: Path) -> None:
    """Minutes or steps, in a file or flags, over a run that made so many steps."""

    def length(*argv: str, base: Config | None = None) -> tuple[float, int]:
        train = parse(*argv, base=base).train
        return train.minutes, train.max_steps

    (workplace / "steps.yaml").write_text("train: {max_steps: 7}")
    (workplace / "minutes.yaml").write_text("train: {minutes: 3}")
    (workplace / "both.yaml").write_text("train: {minutes: 3, max_steps: 7}")
    (workplace / "run.yaml").write_text("train: {minutes: 0.0, max_steps: 7}")
    assert length() == (1, 600)
    assert length("--train.minutes=0") == (0, 600)
    for steps in (["steps.yaml"], ["run.yaml"], ["minutes.yaml", "--train.max_steps=7"]):
        assert length(*steps) == (0, 7)
        run = parse(*steps)
        assert length(base=run) == (0, 7) and length("--train.max_steps=9", base=run) == (0, 9)
        assert length("--train.minutes=2", base=run)[0] == 2
    assert length("minutes.yaml")[0] == length("steps.yaml", "--train.minutes=3")[0] == 3
    with pytest.raises(UserError, match=r"^both.yaml: train.max_steps and minutes both say"):
        parse("both.yaml")


BAD_FLAGS = [  # beside those of test_malformed.py
    (["--mod.n_layer=3"], "unknown flag --mod.n_layer; did you mean --model.n_layer?"),
    (["--model.n_lay=3"], "unknown flag --model.n_lay; did you mean --model.n_layer?"),
    (["-x"], "unknown flag -x; see --help"),
    (["--model.n_embd", "30"], "--model.n_embd 30 must be divisible by n_head 4"),
    (["--model.n_embd", "12"], "--model.positions rotary rotates pairs of channels"),
    (["--model.n_embd=4", "--model.positions=learned"], "--model.qk_norm leaves only signs"),
    (
        ["--train.batch_size", "5", "--train.gradient_accumulation_steps", "2"],
        "--train.batch_size 5 must be divisible by gradient_accumulation_steps 2",
    ),
    (["--train.minutes=1", "--train.max_steps=9"], "--train.max_steps and minutes both say how lo"),
    (["--data.source="], "--data.source is empty"),
    (["--data.repeat_max_period", "99"], "--data.repeat_min_period 8, repeat_max_period 99 and"),
    (["--data.val_fraction=0.5", "--data.test_fraction=0.5"], "leave nothing to train on"),
    (["configs/debgu.yaml"], "config file configs/debgu.yaml; did you mean configs/debug.yaml?"),
]


@pytest.mark.parametrize(("argv", "message"), BAD_FLAGS, ids=lambda value: str(value)[:40])
def test_a_bad_flag_is_one_line(workplace: Path, argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(*argv)
    assert message in str(error.value)
    assert "\n" not in str(error.value) and "usage" not in str(error.value)


BAD_FILES = [
    ("model:\n  n_layer: 0\n", "bad.yaml: model.n_layer must be in [1, 1000], got 0"),
    ("model:\n  n_layer:\n", "model.n_layer must be a whole number, got ''"),
    ("model: 3\n", "model should hold fields, not '3'"),
    ("", "a config has the sections data, model, train, this has none"),
    ("model: {n_layer: 3\n", "is not a config"),
    ("!!python/object/apply:os.system ['touch exploded']\n", "this has none"),
    ("? [a]\n: 3\n", "is not a config"),
    ("model: &a {n_layer: *a}\n", "is not a config"),
    ("model: &a [b, b]\ndata: [*a, *a]\n", "model should hold fields"),
    ("model: " + "[" * 100_000, "is not a config"),
    ("train:\n  compile: !!bool maybe\n", "train.compile must be true or false, got 'maybe'"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=lambda value: str(value)[:40])
def test_a_bad_file_is_one_line(workplace: Path, text: str, message: str) -> None:
    (workplace / "bad.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        parse("bad.yaml")
    assert "bad.yaml" in str(error.value) and message in str(error.value)
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)
    assert not (workplace / "exploded").exists()


NANOGPT = """out_dir eval_interval log_interval eval_iters eval_only always_save_checkpoint
wandb_log wandb_project wandb_run_name dataset gradient_accumulation_steps batch_size block_size
n_layer n_head n_embd dropout bias learning_rate max_iters weight_decay beta1 beta2 grad_clip
decay_lr warmup_iters lr_decay_iters min_lr backend device dtype compile start"""


def test_who_types_a_flag_of_nanogpt_is_told_ours() -> None:
    train_flags, sample_flags = field_types(train.Options), field_types(sample.Options)
    for name in NANOGPT.split():
        word = f"{name}=1"
        with pytest.raises(UserError, match=f"^--{word} is a flag of nanoGPT; here: ") as error:
            options = sample.Options if name == "start" else train.Options
            read_command_line({"": options} | SECTIONS, [f"--{word}"], "", "")
        for flag in re.findall(r"--([\w.]+)", str(error.value).split("here: ")[1]):
            assert flag in {*FIELDS, *train_flags, *sample_flags}, f"--{flag} is no flag of ours"
    for name in SAMPLING:
        with pytest.raises(UserError) as error:
            read_command_line({"": sample.Options}, [f"--{name}=1"], "", "")
        line = f"--{name}=1 is a flag of nanoGPT; here: {SAMPLING[name]}"
        assert str(error.value) == line
        assert set(re.findall(r"--(\w+)", line)) <= {name, *sample_flags}
    with pytest.raises(UserError, match=r"^unknown flag --dtype; see --help"):
        read_command_line({"": Options}, ["--dtype=float16"], "", "")
    assert OURS.keys() == {*NANOGPT.split(), "init_from"}


def test_help_says_every_field_its_type_default_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse("--help")
    assert exit_.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for key, (section, name, field) in FIELDS.items():
        default = getattr(SECTIONS[section](), name)
        entry = re.split(r" --\w+\.", text.split(f"--{key} ")[1])[0]
        assert str(field) in entry and len(entry) > 40
        assert default in (None, "") or f"default: {default})" in entry
