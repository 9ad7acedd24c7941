"""Every flag of every command, every field of a config file and of a stranger's run, with each
mistake that its type makes possible and with hostile text: exit code 2 and one short line that
names the culprit, or text that is taken as it is. Nothing is left behind, nothing hangs."""

import contextlib
import dataclasses
import importlib
import io
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import pytest
import yaml

import sample
import study
import train
from common.errors import UserError
from common.fields import FieldType, field_types
from configs import load
from configs.load import SECTIONS, Config, flag, from_plain, to_plain
from run.checkpoint import load_checkpoint, save_checkpoint
from tests.conftest import DEBUG, make_run

Main = Callable[[list[str]], int]
# By name: the command, its first words, and its flags. (`absent` is a run that is not there.)
COMMANDS: dict[str, tuple[Main, list[str], dict[str, type]]] = {
    "train": (train.main, [], {"": train.Options} | SECTIONS),
    "sample": (sample.main, [], {"": sample.Options}),
}
for verb, (kind, _) in study.VERBS.items():
    COMMANDS[f"study {verb}"] = (study.main, [verb, "absent"], {"": kind})
BENCHMARKS = {
    name: importlib.import_module(f"benchmarks.{name}")
    for name in (
        *("endurance", "recipe", "reliability", "sampling"),
        *("scaling", "throughput", "time_to_loss"),
    )
}
for name, module in BENCHMARKS.items():
    sections = SECTIONS if hasattr(module, "SECTIONS") else {}
    COMMANDS[name] = (module.main, [], {"": module.Options} | sections)

LAUGHS = ", ".join(f"&a{n + 1} [*a{n}, *a{n}]" for n in range(60))
HOSTILE = {
    "50,000 brackets": "[" * 50_000,
    "50,000 braces": "{" * 50_000,
    "aliases in aliases": f"[&a0 [x, x], {LAUGHS}]",
    "an alias of itself": "&a [*a, *a]",
    "300 digits": "9" * 300,
    "10,000 digits": "-" + "9" * 10_000,
    "hexadecimal": "0x" + "f" * 300,
    "a tag": "!!bool maybe",
    "a tag that runs": "!!python/object/apply:os.system ['touch exploded']",
    "100,000 characters": "a" * 100_000,
    "escape sequences": "\x1b]0;owned\x07\x1b[31m\u202e" * 500,
    "templates": "%s %(x)s {0} ${HOME} `touch exploded`",
}


@pytest.fixture(autouse=True)
def quick(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark ends where it would begin to measure."""

    def begin(*args: object) -> NoReturn:
        raise UserError("it would begin here")

    for module in BENCHMARKS.values():
        for name in ("start_runtime", "watch"):
            monkeypatch.setattr(module, name, begin, raising=False)


def flags_of(sections: dict[str, type]) -> dict[str, FieldType]:
    """The flags of a command, with their types."""
    return {
        flag(section, name): field
        for section, kind in sections.items()
        for name, field in field_types(kind).items()
    }


def refused(main: Main, argv: list[str], code: int = 2) -> str:
    """The one line that a command ends with."""
    before = sorted(os.listdir())
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        assert main(argv) == code, argv
    line = said.getvalue()
    assert line.startswith("error: ") and line.count("\n") == 1 and len(line) < 1000, line[:2000]
    assert line[:-1].isprintable() and "Traceback" not in line
    assert sorted(os.listdir()) == before, "something is left"
    return line.removeprefix("error: ")


def outside(field: FieldType) -> Iterator[str]:
    """The nearest numbers below and above what a field may be."""
    if field.limits is None:
        return
    interval = field.limits.interval
    low, high = map(float, interval[1:-1].split(","))
    if field.kind is int:
        yield str(int(low) - (interval[0] == "["))
        yield str(2**63 if high == math.inf else int(high) + (interval[-1] == "]"))
    else:
        yield repr(math.nextafter(low, -math.inf) if interval[0] == "[" else low)
        yield repr(math.nextafter(high, math.inf) if interval[-1] == "]" else high)


def wrong(field: FieldType) -> Iterator[str]:
    """What a field of this type cannot be."""
    if get_origin(field.kind) is Literal:
        yield from ("", get_args(field.kind)[0] + "x", get_args(field.kind)[-1].upper())
    elif field.kind is bool:
        yield from ("", "1", "yes", "[]")
    elif field.kind in (int, float):
        yield from ("", "1 2", "0x1F", "nan")
        yield from outside(field)
        if field.kind is int:
            yield "1.5"
    if not field.optional and field.kind not in (str, list[str] | str):
        yield "null"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_with_each_mistake(command: str) -> None:
    main, words, sections = COMMANDS[command]
    flags = flags_of(sections)
    for name, field in flags.items():
        shared = command != "train" and "." in name  # train.py's flags, read by the same lines
        for value in list(wrong(field))[: 1 if shared else None]:
            line = refused(main, [*words, f"{name}={value}"])
            assert line.startswith(f"{name} must be "), (value, line)
        if field.kind in (str, list[str] | str):
            for value in ("\udc80", "a\0b"):  # bytes that are no UTF-8, and none of a file's name
                assert refused(main, [*words, f"{name}={value}"]).startswith(f"{name} has char")
        if field.kind is not bool:
            for argv in ([name], [name, next(iter(flags))]):
                assert refused(main, [*words, *argv]).startswith(f"{name} needs a value")
        line = refused(main, [*words, f"{name}x=1"])
        assert line == f"unknown flag {name}x; did you mean {name}?\n"
        if name[:-1] not in flags:
            assert name[:-1] in refused(main, [*words, name[:-1], "1"])
    assert "a word too many" in refused(main, [*words, "one", "a word too many"])


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_with_hostile_text(command: str, text: str) -> None:
    main, words, sections = COMMANDS[command]
    own = sections if command == "train" else {"": sections[""]}
    for name, field in flags_of(own).items():
        argv = [*words, f"{name}={HOSTILE[text]}"]
        if command == "train" and name not in ("--resume", "--evaluate", "--init_from"):
            argv.append("--data.source=absent.txt")  # where those of text end
        if name == "--random":
            argv.remove("absent")
        line = refused(main, argv)
        number = field.kind is float and text == "300 digits"  # 1e300
        if field.kind not in (str, list[str] | str) and not number:
            assert line.startswith(f"{name} must be "), line
    if command == "train" or words:
        refused(main, [*words[:1], HOSTILE[text]])


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_of_a_config_file_with_each_mistake(workplace: Path, section: str) -> None:
    def refuse(text: str, culprit: str) -> None:
        (workplace / "some.yaml").write_text(text, encoding="utf-8")
        assert culprit in refused(train.main, ["some.yaml"]), text

    tried: list[Any] = []  # kinds of fields
    for name, field in field_types(SECTIONS[section]).items():
        for value in [*wrong(field), {"a": ["b"]}, [["a"]], []]:
            refuse(yaml.safe_dump({section: {name: value}}), f"{section}.{name} must be ")
        refuse(f"{section}:\n  {name}x: 1\n", f"{section}.{name}x; did you mean {name}?")
        refuse(f"{section}:\n  {name}: 1\n  {name}: 1\n", f"{name} is given twice")
        refuse(f"{section}x:\n  {name}: 1\n", f"unknown section {section}x; did you mean {section}")
        if field.kind in tried:
            continue
        tried.append(field.kind)
        for text in filter(lambda text: len(text) < 50_000, HOSTILE.values()):
            (workplace / "some.yaml").write_text(f"{section}:\n  {name}: {text}\n")
            refused(train.main, ["some.yaml", "--data.source=absent.txt"])


TEXTS = [name for name, field in field_types(SECTIONS["data"]).items() if field.kind is str]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_strangers_run_with_hostile_text(
    workplace: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sampling needs none of it; studying and training end with one line where they need it."""
    fine = "a text to study with enough of it\n" * 20
    (workplace / "fine.txt").write_text(fine)
    changes: list[dict[str, str]] = [{"source": HOSTILE[text]}]
    if text in ("aliases in aliases", "escape sequences"):
        changes.append(dict.fromkeys(TEXTS, HOSTILE[text]))
    for changed in changes:
        make_run(workplace / "runs" / "a", chars="".join(sorted(set(fine))))
        for path in Path("runs/a").glob("*.safetensors"):
            header, tensors = load_checkpoint(path)
            header.config["data"].update({"source": "fine.txt"} | changed)
            header.corpus["source"] = HOSTILE[text]
            save_checkpoint(path, tensors, header)
        for main, argv in (
            (sample.main, ["a", "--max_new_tokens=2"]),
            (study.main, ["trace", "a", "--prompt=a text"]),
            (study.main, ["heads", "a", "--sequences=2"]),
            (train.main, ["--resume=a"]),
            (train.main, ["--evaluate=a"]),
            (train.main, ["--init_from=a", "--train.max_steps=1", "--train.device=cpu"]),
        ):
            code = main(argv)
            out, err = capsys.readouterr()
            assert "\x1b" not in (out + err).replace("\r\x1b[K", "")  # which erases progress
            assert all(len(line) < 1000 for line in err.splitlines())
            assert code == 0 or (code == 2 and err.splitlines()[-1].startswith("error: "))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_strangers_run_with_each_mistake_in_its_config(workplace: Path, section: str) -> None:
    run = make_run(workplace / "runs" / "a")
    header, tensors = load_checkpoint(run / "best.safetensors")
    for name, field in field_types(SECTIONS[section]).items():
        for value in [*wrong(field), 10**400, math.inf, {"a": [1]}, [[1]], [], True]:
            if value is True and field.kind is bool:
                continue
            plain: dict[str, Any] = to_plain(Config())
            plain[section][name] = value
            with pytest.raises(UserError, match=f"^here: .*{name}"):
                from_plain(plain, "here")
        changed = dataclasses.replace(header, config=plain)
        save_checkpoint(run / "best.safetensors", tensors, changed)
        line = refused(sample.main, ["a"])
        assert line.startswith("runs/a/best.safetensors: ") and name in line, line


ODD = "\x1b]0;owned\x07\x1b[31m \u202e \n"


@pytest.fixture
def odd_run(workplace: Path) -> None:
    """A run whose folder's name acts on a terminal."""
    (workplace / "fine.txt").write_text("a text to study with enough of it\n" * 40)
    flags = ["--model.n_embd=8", "--train.sample_tokens=0", "--train.max_steps=1"]
    assert train.main([DEBUG, *flags, "--data.source=fine.txt", "--run=a"]) == 0
    os.rename("runs/a", f"runs/{ODD}")


def refuse_raw(main: Main, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(argv) == 0
    out, err = capsys.readouterr()
    shown = (out + err).replace("\r\033[K", "")  # how a line of progress is erased
    assert not {"\x1b", "\x07", "\u202e"} & set(shown), argv


def test_a_folders_name_never_acts_on_the_terminal(
    odd_run: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for main, argv in (
        (sample.main, ["--max_new_tokens=1"]),
        *((study.main, [verb, ODD, "--prompt=a text"]) for verb in ("trace", "verify")),
        *((study.main, [verb, ODD, "--sequences=2"]) for verb in ("heads", "report")),
        (study.main, ["compare", ODD, "--sequences=2", "--steps=0"]),
        (train.main, [f"--evaluate={ODD}"]),
        (train.main, [f"--init_from={ODD}", "--run=other"]),
    ):
        refuse_raw(main, argv, capsys)


@pytest.mark.parametrize("more", [[], ["--train.max_steps=2"]], ids=["complete", "resumed"])
def test_nor_when_it_is_resumed(
    odd_run: None, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_raw(train.main, [f"--resume={ODD}", *more], capsys)


@pytest.mark.parametrize("text", ["templates", "an alias of itself", "300 digits"])
def test_text_is_taken_as_it_is(workplace: Path, text: str) -> None:
    """It names a run, a text, a separator and a folder; YAML and JSON give it back."""
    hostile = HOSTILE[text].replace("/", "-")[:200]
    (workplace / hostile).write_text("a text that is fine\n" * 40)
    files = [f"--data.source={hostile}"] * 2
    flags = [f"--data.separator={hostile}", f"--data.cache_dir={hostile} cache", "--model.n_embd=8"]
    flags += ["--train.max_steps=1", "--train.sample_tokens=0", "--data.tokenizer=byte"]
    assert train.main([DEBUG, *files, *flags, f"--run=run {hostile}"]) == 0
    assert {hostile, f"{hostile} cache", "runs"} == set(os.listdir())
    read = load.read_yaml(Path("runs", f"run {hostile}", "config.yaml"))["data"]
    assert read["source"] == [hostile, hostile] and read["separator"] == hostile
    assert train.main([f"--resume=run {hostile}", "--train.max_steps=2"]) == 0
    assert sample.main([f"run {hostile}", f"--prompt={hostile}", "--max_new_tokens=1"]) == 0
