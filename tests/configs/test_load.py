"""Defaults, then the file, then the flags; every mistake is one line that names its place."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
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
from configs.nanogpt import OURS
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


def others(key: str) -> tuple[Any, Any]:
    """Two valid values of a field, other than its default."""
    section, name, field = FIELDS[key]
    default = getattr(SECTIONS[section](), name)
    if get_origin(field.kind) is Literal:
        choices = [choice for choice in get_args(field.kind) if choice != default]
        return choices[0], choices[-1]
    if field.kind is bool:
        return not default, not default
    if field.kind is float:
        return 0.25, 0.5
    if field.kind is int:
        doubled = 2 * (default or 2)  # keeps what must be divisible
        return {"repeat_max_period": (16, 20), "repeat_min_period": (4, 16)}.get(
            name, (doubled, doubled) if name == "n_head" else (doubled, 2 * doubled)
        )
    return f"{name}: [1", "- &a"


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_is_read_from_file_and_flag_and_the_flag_wins(
    workplace: Path, key: str
) -> None:
    (section, name, _), (first, second) = FIELDS[key], others(key)

    def value(config: Config) -> Any:
        rest = to_plain(config)
        found = rest[section].pop(name)
        assert rest == {
            k: {n: v for n, v in part.items() if (k, n) != (section, name)}
            for k, part in to_plain(base).items()
        }, "another field changed"
        return found

    base = Config(model=ModelConfig(n_embd=96, n_head=4), train=TrainConfig(batch_size=24))
    if name in ("n_head", "n_embd", "batch_size"):
        base = Config()
    assert value(parse(base=base)) == getattr(getattr(base, section), name)
    (workplace / "some.yaml").write_text(yaml.safe_dump({section: {name: first}}))
    assert value(parse("some.yaml", base=base)) == first
    flag = f"--{key}={str(second).lower() if isinstance(second, bool) else second}"
    for argv in ((flag, "some.yaml"), ("some.yaml", *flag.split("=", 1))):
        if argv[-1].startswith("-"):
            continue  # such a value needs the =
        assert value(parse(*argv, base=base)) == second


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_is_text(workplace: Path, text: str) -> None:
    assert options(f"--prompt={text}").prompt == text
    assert parse(f"--data.source={text}", f"--data.separator={text}").data == DataConfig(
        source=text, separator=text
    )
    plain = {"data": {"source": [text, "b"], "separator": text}}
    (workplace / "text.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    assert parse("text.yaml").data == DataConfig(source=[text, "b"], separator=text)


@pytest.mark.parametrize("text", ["[" * 100_000, "&a [*b,*b]", "null", "123", "!!bool x", "0x1F"])
def test_text_that_looks_like_yaml_is_text(text: str) -> None:
    assert parse("--data.source", text).data.source == text
    assert options("--prompt", text).prompt == text


def test_a_flag_may_stand_alone_or_several_times() -> None:
    assert options("--alone").alone and options("--alone=true").alone
    assert not options("--alone", "false").alone
    word, values = read_command_line({"": Options}, ["--alone", "a-run"], "", "")
    assert word == "a-run" and values[""] == {"alone": True}
    assert parse("--data.source", "a", "--data.source=b").data.source == ["a", "b"]
    assert parse("--model.n_layer", "2", "--model.n_layer=3").model.n_layer == 3
    assert options("--prompt=-x").prompt == "-x" and options("--prompt", "- x").prompt == "- x"


BAD_FLAGS = [
    (["--model.n_layers", "3"], "unknown flag --model.n_layers; did you mean --model.n_layer?"),
    (["--mod.n_layer=3"], "unknown flag --mod.n_layer; did you mean --model.n_layer?"),
    (["--model.n_lay=3"], "unknown flag --model.n_lay; did you mean --model.n_layer?"),
    (["--zzz", "3"], "unknown flag --zzz; see --help"),
    (["-x"], "unknown flag -x; see --help"),
    (["--model.n_layer"], "--model.n_layer needs a value"),
    (["--model.n_layer", "--model.n_head", "2"], "--model.n_layer needs a value"),
    (["--model.n_embd", "30"], "--model.n_embd 30 must be divisible by n_head 4"),
    (["--model.n_embd", "12"], "--model.positions rotary rotates pairs of channels"),
    (["--model.n_embd=4", "--model.positions=learned"], "--model.qk_norm leaves only signs"),
    (
        ["--train.batch_size", "5", "--train.gradient_accumulation_steps", "2"],
        "--train.batch_size 5 must be divisible by gradient_accumulation_steps 2",
    ),
    (["--data.source="], "--data.source is empty"),
    (["--data.repeat_max_period", "99"], "--data.repeat_min_period 8, repeat_max_period 99 and"),
    (["--data.val_fraction=0.5", "--data.test_fraction=0.5"], "leave nothing to train on"),
    (["a.yaml", "b.yaml"], "one word without a flag is expected, got: a.yaml b.yaml"),
    (["configs/debgu.yaml"], "config file configs/debgu.yaml; did you mean configs/debug.yaml?"),
    (["absent.yaml"], "there is no config file absent.yaml"),
]


@pytest.mark.parametrize(("argv", "message"), BAD_FLAGS, ids=lambda value: str(value)[:40])
def test_a_bad_flag_is_one_line(workplace: Path, argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(*argv)
    assert message in str(error.value)
    assert "\n" not in str(error.value) and "usage" not in str(error.value)


def test_a_command_that_takes_no_word_says_so() -> None:
    with pytest.raises(UserError, match="no word without a flag is expected, got: a"):
        options("a")


BAD_FILES = [
    ("model:\n  n_layer:\n", "model.n_layer must be a whole number, got ''"),
    ("model:\n  n_layer: null\n", "model.n_layer must be a whole number, got 'null'"),
    ("model:\n  n_layers: 3\n", "unknown key model.n_layers; did you mean n_layer?"),
    ("modl:\n  n_layer: 3\n", "unknown section modl; did you mean model?"),
    ("n_layer: 3\n", "unknown section n_layer"),
    ("model: 3\n", "model should hold fields, not '3'"),
    ("- 3\n", "a config has the sections data, model, train, this has none"),
    ("", "a config has the sections data, model, train, this has none"),
    ("model: {n_layer: 3\n", "is not a config"),
    ("model:\n  n_layer: 3\n  n_layer: 4\n", "n_layer is given twice"),
    ("model: {}\nmodel: {}\n", "model is given twice"),
    ("!!python/object/apply:os.system ['touch exploded']\n", "this has none"),
    ("? [a]\n: 3\n", "is not a config"),
    ("model: &a {n_layer: *a}\n", "is not a config"),
    ("model: &a [b, b]\ndata: [*a, *a]\n", "model should hold fields"),
    ("model: " + "[" * 100_000, "is not a config"),
    ("model:\n  n_layer: " + "9" * 10_000, "model.n_layer must be a whole number"),
    ("model:\n  n_layer: 0x" + "f" * 10_000, "model.n_layer must be a whole number"),
    ("train:\n  compile: !!bool maybe\n", "train.compile must be true or false, got 'maybe'"),
    ("train:\n  seed: !!timestamp x\n", "train.seed must be a whole number, got 'x'"),
    ("\udcff", "is not a config"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=lambda value: str(value)[:40])
def test_a_bad_file_is_one_line(workplace: Path, text: str, message: str) -> None:
    (workplace / "bad.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as error:
        parse("bad.yaml")
    assert "bad.yaml" in str(error.value) and message in str(error.value)
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)
    assert not (workplace / "exploded").exists()


def test_adamw_alone_has_a_rate_of_its_own(workplace: Path) -> None:
    assert parse().train.adamw_learning_rate == 1e-2
    assert parse("--train.optimizer=adamw").train.adamw_learning_rate == 1e-3
    assert parse("--train.optimizer=adamw", base=Config()).train.adamw_learning_rate == 1e-3
    given_ = parse("--train.optimizer=adamw", "--train.learning_rate=0.5")
    assert given_.train.adamw_learning_rate == 0.5
    assert parse("--train.learning_rate=null", base=given_).train.adamw_learning_rate == 1e-3


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
    with pytest.raises(UserError, match=r"^unknown flag --dtype; see --help"):
        read_command_line({"": sample.Options}, ["--dtype=float16"], "", "")
    assert OURS.keys() == {*NANOGPT.split(), "init_from"}


configs = st.builds(
    Config,
    model=st.builds(
        ModelConfig,
        n_head=st.sampled_from([1, 2, 4]),
        n_embd=st.sampled_from([16, 32]),
        bias=st.booleans(),
        dropout=st.floats(0, 0.9),
    ),
    data=st.builds(
        DataConfig,
        source=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
        | st.lists(st.text("ab\n:[", min_size=1), min_size=1, max_size=3),
    ),
    train=st.builds(
        TrainConfig,
        learning_rate=st.none() | st.floats(0, 1),
        seed=st.integers(0, 2**63 - 1),
        muon_momentum=st.floats(0, 1, exclude_max=True),
    ),
)


@given(configs)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_config_reloads_equal(workplace: Path, config: Config) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(config))), "here") == config
    text = yaml.safe_dump(to_plain(config), sort_keys=False)
    (workplace / "config.yaml").write_text(text, encoding="utf-8")
    assert parse("config.yaml") == config


def test_plain_data_reloads_strictly() -> None:
    plain = to_plain(Config())
    for section, kind in SECTIONS.items():
        for name in field_types(kind):
            less: dict[str, Any] = json.loads(json.dumps(plain))
            del less[section][name]
            with pytest.raises(UserError, match=f"here: {section}.should have the fields"):
                from_plain(less, "here")
    changes: list[Any] = [{"model": {}}, {"extra": {}}, {"model": 3}]
    for change in changes:
        with pytest.raises(UserError, match="here: "):
            from_plain(plain | change, "here")


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
