"""Defaults, then the file, then the flags; every mistake is one line that names its place."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import UserError
from configs.load import (
    SECTIONS,
    Config,
    Parser,
    from_plain,
    make_parser,
    read_config,
    split_positional,
    to_plain,
)
from data.config import DataConfig
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import (
    Header,
    load_checkpoint,
    load_training,
    save_checkpoint,
    training_tensors,
)
from train import train_step
from training.config import TrainConfig
from training.optim import Optimizer


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Nothing"""


def parser() -> Parser:
    return make_parser({"": NoOptions} | SECTIONS, "usage", "description")


def parse(*argv: str, base: Config | None = None) -> Config:
    words, flags = split_positional(list(argv))
    return read_config(parser(), flags, words[0] if words else None, base)


def test_a_list_is_added_to(workplace: Path) -> None:
    """`--data.source+` adds to what the file or the run has, and to no default."""
    add = ["--data.source+", "b.txt", "--data.source+=c.txt"]
    assert parse(*add).data.source == ["b.txt", "c.txt"]
    (workplace / "some.yaml").write_text("data: {source: [a.txt]}")
    assert parse("some.yaml", *add).data.source == ["a.txt", "b.txt", "c.txt"]
    base = Config(data=DataConfig(source=["z.txt"]))
    assert parse(*add, base=base).data.source == ["z.txt", "b.txt", "c.txt"]
    assert base.data.source == ["z.txt"], "the run's own is as it was"


@pytest.fixture
def file(workplace: Path) -> Path:
    path = workplace / "some.yaml"
    path.write_text("model:\n  n_layer: 7\n  n_head: 2\ntrain:\n  learning_rate: 1e-2\n")
    return path


def test_without_anything_the_defaults() -> None:
    assert parse() == Config()


def test_flags_win_over_the_file_and_the_file_over_the_base(file: Path) -> None:
    for argv in (
        [str(file), "--model.n_head", "8"],
        ["--model.n_head", "8", str(file)],
        ["--model.n_head=8", str(file), "--train.max_steps", "5"],
    ):
        config = parse(*argv)
        assert (config.model.n_layer, config.model.n_head) == (7, 8)
        assert config.train.learning_rate == 0.01
    base = Config(model=ModelConfig(n_layer=3, n_embd=64))
    assert parse(str(file), base=base).model == ModelConfig(n_layer=7, n_head=2, n_embd=64)
    assert parse("--model.n_head", "1", base=base).model == (
        ModelConfig(n_layer=3, n_head=1, n_embd=64)
    )


def test_values_of_every_kind() -> None:
    config = parse(
        *("--data.source", "[a.txt, b.txt]", "--train.compile", "true", "--train.seed", "0"),
        *("--model.activation=swiglu", "--train.learning_rate", "1e-4", "--data.separator", "-"),
        *("--train.grad_clip", "0"),
    )
    assert config.data.source == ["a.txt", "b.txt"]
    assert config.train.compile is True
    assert config.model.activation == "swiglu"
    assert config.train.learning_rate == 1e-4
    assert config.train.grad_clip == 0
    for name in ("novel.txt", "a[1].txt", "*.txt", "123", "null", "hub:a/b"):
        assert parse("--data.source", name).data.source == name


def test_a_value_may_begin_with_a_dash() -> None:
    argv = ["--prompt", "-x", "run", "--n=1"]
    assert split_positional(argv) == (["run"], ["--prompt=-x", "--n=1"])
    assert parse("--data.separator=--x").data.separator == "--x"


def test_there_are_as_many_words_as_a_command_takes() -> None:
    assert split_positional([]) == ([], [])
    with pytest.raises(UserError, match="one word without a flag at most, got: a b"):
        split_positional(["a", "--n", "1", "b"])
    with pytest.raises(UserError, match="no word without a flag, got: a"):
        split_positional(["a", "--n", "1"], most=0)


BAD_FLAGS = [
    (["--model.n_layers", "3"], "unknown flag --model.n_layers; did you mean --model.n_layer?"),
    (["--n_layer", "3"], "unknown flag --n_layer; did you mean --model.n_layer?"),
    (["--zzz", "3"], "unknown flag --zzz; see --help"),
    (["-x"], "unknown flag -x; see --help"),
    (["--mod.n_layer=3"], "unknown flag --mod.n_layer; did you mean --model.n_layer?"),
    (["--model.n_layer"], "--model.n_layer needs a value"),
    (["--model.n_layer", "--model.n_head", "2"], "--model.n_layer needs a value"),
    (["--model.n_layer", "x"], "--model.n_layer must be a whole number, got 'x'"),
    (["--model.n_layer", "1.5"], "--model.n_layer must be a whole number, got '1.5'"),
    (["--model.n_layer", "null"], "--model.n_layer must be a whole number, got null"),
    (["--model.n_layer="], "--model.n_layer must be a whole number, got ''"),
    (["--model.bias", "1"], "--model.bias must be true or false, got '1'"),
    (["--train.learning_rate", "fast"], "--train.learning_rate must be a number, got 'fast'"),
    (["--train.learning_rate", "nan"], "--train.learning_rate must be a number, got 'nan'"),
    (["--model.norm", "batch"], "--model.norm must be one of layernorm, rmsnorm, got 'batch'"),
    (["--model.n_layer", "0"], "--model.n_layer must be a number of at least 1, got 0"),
    (["--train.max_steps", "-5"], "--train.max_steps must be a number of at least 1, got -5"),
    (["--model.dropout", "1"], "--model.dropout must be in [0, 1), got 1.0"),
    (["--data.val_fraction", "0"], "--data.val_fraction must be above 0 and below 1, got 0"),
    (["--data.source", ""], "--data.source is empty"),
    (["--model.n_embd", "30"], "--model.n_embd 30 must be divisible by --model.n_head 4"),
    (["--model.n_embd", "12"], "the head width must be even; n_embd 12 / n_head 4 is 3"),
    (
        ["--model.n_embd=4", "--model.qk_norm=true", "--model.positions=learned"],
        "--model.qk_norm leaves nothing but signs of a head 1 wide",
    ),
    (["--train.batch_size", "5", "--train.grad_accum_steps", "2"], "must be divisible by"),
    (["--train.final_lr_fraction", "2"], "--train.final_lr_fraction must be in [0, 1], got 2"),
    (["--train.decay_fraction", "1.5"], "--train.decay_fraction must be in [0, 1], got 1.5"),
    (["--train.decay_fraction=-0.1"], "--train.decay_fraction must be in [0, 1], got -0.1"),
    (["--train.muon_momentum", "1"], "--train.muon_momentum must be in [0, 1), got 1.0"),
    (["--train.muon_momentum=-0.1"], "--train.muon_momentum must be in [0, 1), got -0.1"),
    (["--train.muon_learning_rate=-1"], "--train.muon_learning_rate must be a number of at least"),
    (["--train.target_loss=-1"], "--train.target_loss must be a number of at least 0, got -1"),
    (["--train.optimizer", "sgd"], "--train.optimizer must be one of muon, adamw, got 'sgd'"),
    (["--model.ngrams", "0"], "--model.ngrams must be a number of at least 1, got 0"),
    (["--model.ngrams", "17"], "--model.ngrams must be at most 16, got 17"),
    (["--train.learning_rate", "1e31"], "--train.learning_rate must be at most 1e30, got 1e+31"),
    (["--train.muon_learning_rate=1e31"], "--train.muon_learning_rate must be at most 1e30"),
    (["--model.ngrams", "two"], "--model.ngrams must be a whole number, got 'two'"),
    (["--model.zero_init", "1"], "--model.zero_init must be true or false, got '1'"),
    (["--train.seed", str(2**63)], "--train.seed must be below 2**63"),
    (["--data.repeat_vocab", "50001"], "--data.repeat_vocab must be at most 50,000, got 50001"),
    (["--data.repeat_max_period", "99"], "--data.repeat_max_period 99"),
    (["a.yaml", "b.yaml"], "one word without a flag at most, got: a.yaml b.yaml"),
    (["configs/debgu.yaml"], "config file configs/debgu.yaml; did you mean configs/debug.yaml?"),
    (
        ["absent.yaml"],
        "there is no config file absent.yaml; known are configs/debug.yaml, ",
    ),
]


@pytest.mark.parametrize(("argv", "message"), BAD_FLAGS, ids=lambda value: str(value)[:40])
def test_a_bad_flag_is_one_line(workplace: Path, argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(*argv)
    assert message in str(error.value)
    assert "\n" not in str(error.value) and "usage" not in str(error.value)


BAD_FILES = [
    ("model:\n  n_layer: null\n", "model.n_layer is null; leave it out for its default"),
    ("model:\n  n_layers: 3\n", "unknown key model.n_layers; did you mean n_layer?"),
    ("modl:\n  n_layer: 3\n", "unknown section modl; did you mean model?"),
    ("n_layer: 3\n", "unknown section n_layer; known are data, model, train"),
    ("model: 3\n", "model should hold fields, not 3"),
    ("model:\n", "model should hold fields, not None"),
    ("- 3\n", "a config has the sections data, model, train, this has none"),
    ("", "a config has the sections data, model, train, this has none"),
    ("model: {n_layer: 3\n", "is not a YAML file"),
    ("model:\n  n_layer: 3\n  n_layer: 4\n", "n_layer is given twice"),
    ("model: {}\nmodel: {}\n", "model is given twice"),
    ("model:\n  n_layer: many\n", "--model.n_layer must be a whole number, got 'many'"),
    ("model:\n  n_layer: true\n", "--model.n_layer must be a whole number, got 'True'"),
    ("model:\n  n_layer: 2.0\n", "--model.n_layer must be a whole number, got '2.0'"),
    ("train:\n  learning_rate: .nan\n", "--train.learning_rate must be a number of at least 0"),
    ("train:\n  decay_fraction: .nan\n", "--train.decay_fraction must be in [0, 1], got nan"),
    ("train:\n  target_loss: .inf\n", "--train.target_loss must be a number of at least 0"),
    ("train:\n  learning_rate: .inf\n", "--train.learning_rate must be a number of at least 0"),
    ("data:\n  source: 3\n", "--data.source must be text or a list of texts, got '3'"),
    ("data:\n  source: [a, null]\n", "--data.source must be text or a list of texts"),
    ("data:\n  source: []\n", "--data.source is empty"),
    ("!!python/object/apply:os.system ['touch exploded']\n", "is not a YAML file"),
    ("? [a]\n: 3\n", "is not a YAML file"),
    ("model: &a {n_layer: *a}\n", "a config has no use for aliases"),
    ("model: " + "[" * 100_000, "a config has no use for aliases and for lists in lists"),
    ("model:\n  n_layer: " + "9" * 10_000, "is not a YAML file"),
    ("\udcff", "is not a YAML file"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_bad_file_is_one_line(workplace: Path, text: str, message: str) -> None:
    (workplace / "bad.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as error:
        parse("bad.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (workplace / "exploded").exists()


small = st.builds(
    ModelConfig,
    block_size=st.integers(1, 64),
    n_layer=st.integers(1, 4),
    n_head=st.sampled_from([1, 2, 4]),
    n_embd=st.sampled_from([16, 32]),
    positions=st.sampled_from(["learned", "rotary"]),
    norm=st.sampled_from(["layernorm", "rmsnorm"]),
    activation=st.sampled_from(["gelu", "relu2", "swiglu"]),
    ngrams=st.integers(1, 4),
    zero_init=st.booleans(),
    qk_norm=st.booleans(),
    tie_head=st.booleans(),
    bias=st.booleans(),
    dropout=st.floats(0, 0.9),
)
sources = st.text(min_size=1) | st.lists(st.text(min_size=1), min_size=1, max_size=3)
configs = st.builds(
    Config,
    model=small,
    data=st.builds(DataConfig, source=sources, separator=st.text()),
    train=st.builds(
        TrainConfig,
        learning_rate=st.floats(0, 1),
        seed=st.integers(0, 2**63 - 1),
        optimizer=st.sampled_from(["muon", "adamw"]),
        muon_momentum=st.floats(0, 1, exclude_max=True),
        decay_fraction=st.floats(0, 1),
        target_loss=st.floats(0, 10),
    ),
)


@given(configs)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_any_config_reloads_equal(workplace: Path, config: Config) -> None:
    plain = json.loads(json.dumps(to_plain(config)))
    assert from_plain(plain, "here") == config
    text = yaml.safe_dump(to_plain(config), sort_keys=False)
    (workplace / "config.yaml").write_text(text, encoding="utf-8")
    assert parse("config.yaml") == config


@given(configs, st.integers(1, 6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_any_small_config_builds_steps_and_reloads_equal(
    workplace: Path, config: Config, V: int
) -> None:
    model = GPT(config.model, V)
    optimizer = Optimizer(model, config.train)
    windows = torch.randint(V, (2, config.model.block_size + 1))
    train_step(model, model, optimizer, 1.0, windows, config.train)
    path = workplace / "last.safetensors"
    tensors = training_tensors(model, optimizer)
    header = Header(**HEADER | {"config": to_plain(config)})
    save_checkpoint(path, tensors, header)
    saved, loaded = load_checkpoint(path)
    again = GPT(from_plain(saved.config, "here").model, V)
    load_training(again, Optimizer(again, config.train), loaded, path)
    assert saved == header and from_plain(saved.config, "here") == config
    reloaded = training_tensors(again, optimizer)
    assert reloaded.keys() == tensors.keys() == loaded.keys()
    assert all(torch.equal(reloaded[name], tensors[name]) for name in tensors)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


HEADER: dict[str, Any] = {
    **{"tokenizer": {"kind": "byte"}, "corpus": {}, "step": 1, "seconds": 0.5, "train_loss": 2.0},
    **{"evaluated": 0, "val_loss": None, "best_val_loss": None, "evals_since_best": 0},
    **{"device": "cpu", "processor": "", "threads": 1, "processes": 1},
    **{"precision": "float32", "torch": "2.13.0"},
}


def test_plain_data_reloads_strictly() -> None:
    plain = to_plain(Config())
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            less: dict[str, Any] = json.loads(json.dumps(plain))
            del less[section][field.name]
            with pytest.raises(UserError, match=f"here: {section}.{field.name} is missing"):
                from_plain(less, "here")
    more = {"train": plain["train"] | {"x": 1}}
    changes: list[dict[str, Any]] = [{"model": {}}, {"extra": {}}, {"model": 3}, more]
    for change in changes:
        with pytest.raises(UserError, match="here: "):
            from_plain(plain | change, "here")
    with pytest.raises(UserError, match="must be a whole number"):
        from_plain(plain | {"model": plain["model"] | {"n_layer": "x"}}, "here")


def test_help_says_every_field_its_type_default_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse("--help")
    assert exit_.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            assert f"--{section}.{field.name} " in text
            assert f"default: {field.default}" in text or field.default == ""
    for words in ("Number of blocks. (type: int, default: 4)", "Peak learning rate of AdamW."):
        assert words in text
