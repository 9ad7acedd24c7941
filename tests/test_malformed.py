"""Every flag of every command and every field of a config file with each mistake that its type
makes possible and with hostile text, as in a stranger's run: exit code 2 and one short line that
names the culprit, or text that is taken as it is. Nothing is left behind, nothing hangs."""

import contextlib
import importlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NoReturn, get_args, get_origin

import pytest
import yaml

import sample
import study
import train
from common.errors import UserError
from common.fields import FieldType, field_types
from configs import load
from configs.load import SECTIONS, flag
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
NAMES = "recipe sampling throughput time_to_loss"
BENCHMARKS = {name: importlib.import_module(f"benchmarks.{name}") for name in NAMES.split()}
for name, module in BENCHMARKS.items():
    sections = SECTIONS if hasattr(module, "SECTIONS") else {}
    COMMANDS[name] = (module.main, [], {"": module.Options} | sections)

LAUGHS = ", ".join(f"&a{n + 1} [*a{n}, *a{n}]" for n in range(60))
HOSTILE = {
    "50,000 brackets": "[" * 50_000,
    "aliases in aliases": f"[&a0 [x, x], {LAUGHS}]",
    "300 digits": "9" * 300,
    "10,000 digits": "-" + "9" * 10_000,
    "a tag that runs": "!!python/object/apply:os.system ['touch exploded']",
    "100,000 characters": "a" * 100_000,
    "escape sequences": "\x1b]0;owned\x07\x1b[31m\u202e" * 500,
    "templates": "%s %(x)s {0} ${HOME} `touch exploded`",
}
TEXT = (str, list[str] | str)  # types of fields that take any text


@pytest.fixture(autouse=True)
def quick(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark ends where it would begin to measure."""

    def begin(*args: object) -> NoReturn:
        raise UserError("it would begin here")

    for module in BENCHMARKS.values():
        monkeypatch.setattr(module, "pick_device", begin)


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


def wrong(field: FieldType) -> Iterator[str]:
    """What a field of this type cannot be."""
    if get_origin(field.kind) is Literal:
        yield from ("", get_args(field.kind)[0] + "x", get_args(field.kind)[-1].upper())
    elif field.kind is bool:
        yield from ("", "1", "yes", "[]")
    elif field.kind in (int, float):
        yield from ("", "1 2", "0x1F", "nan")
        if field.kind is int:
            yield "1.5"
    if field.limits:
        yield from ("-1", "1e999" if field.kind is float else str(2**63))
    if not field.optional and field.kind not in TEXT:
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
        if field.kind in TEXT:
            for value in ("\udc80", "a\0b"):  # bytes that are no UTF-8, and none of a file's name
                assert refused(main, [*words, f"{name}={value}"]).startswith(
                    f"{name} contains char"
                )
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
        if field.kind not in TEXT and not number:
            assert line.startswith(f"{name} must be "), line
    if command == "train" or words:
        refused(main, [*words[:1], HOSTILE[text]])


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_of_a_config_file_with_each_mistake(workplace: Path, section: str) -> None:
    def refuse(text: str, culprit: str) -> None:
        (workplace / "some.yaml").write_text(text, encoding="utf-8")
        assert culprit in refused(train.main, ["some.yaml", "--data.source=absent.txt"]), text

    fields = field_types(SECTIONS[section])
    for name, field in fields.items():
        for value in [*wrong(field), {"a": ["b"]}, [["a"]], []]:
            refuse(yaml.safe_dump({section: {name: value}}), f"{section}.{name} must be ")
        refuse(f"{section}:\n  {name}x: 1\n", f"{section}.{name}x; did you mean {name}?")
        refuse(f"{section}:\n  {name}: 1\n  {name}: 1\n", f"{name} is given twice")
    refuse(f"{section}x:\n  {name}: 1\n", f"unknown section {section}x; did you mean {section}")
    one_of_each_kind = {field.kind: name for name, field in fields.items()}
    for name in one_of_each_kind.values():
        for text in filter(lambda text: len(text) < 50_000, HOSTILE.values()):
            refuse(f"{section}:\n  {name}: {text}\n", "")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_strangers_run_with_hostile_text(
    workplace: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sampling needs none of it; studying and training end with one line where they need it."""
    fine = "a text to study with enough of it\n" * 20
    (workplace / "fine.txt").write_text(fine)
    texts = [name for name, field in field_types(SECTIONS["data"]).items() if field.kind is str]
    changes = [{"source": HOSTILE[text]}, dict.fromkeys(texts, HOSTILE[text])]
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


def test_a_folders_name_never_acts_on_the_terminal(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "fine.txt").write_text("a text to study with enough of it\n" * 40)
    flags = ["--model.n_embd=8", "--train.sample_tokens=0", "--train.max_steps=1"]
    assert train.main([DEBUG, *flags, "--data.source=fine.txt", "--run=a"]) == 0
    odd = "\x1b]0;owned\x07\x1b[31m \u202e \n"
    os.rename("runs/a", f"runs/{odd}")
    commands: list[tuple[Main, list[str]]] = [
        (sample.main, ["--max_new_tokens=1"]),
        *((study.main, [verb, odd, "--prompt=a text"]) for verb in ("trace", "verify")),
        *((study.main, [verb, odd, "--sequences=2"]) for verb in ("heads", "report")),
        (study.main, ["compare", odd, "--sequences=2", "--steps=0"]),
        (train.main, [f"--evaluate={odd}"]),
        (train.main, [f"--init_from={odd}", "--run=other"]),
        (train.main, [f"--resume={odd}"]),
        (train.main, [f"--resume={odd}", "--train.max_steps=2"]),
    ]
    capsys.readouterr()
    for main, argv in commands:
        assert main(argv) == 0
        out, err = capsys.readouterr()
        shown = (out + err).replace("\r\033[K", "")  # how a line of progress is erased
        assert not {"\x1b", "\x07", "\u202e"} & set(shown), argv


def test_text_is_taken_as_it_is(workplace: Path) -> None:
    """It names a run, a text and a separator; YAML and JSON give it back."""
    for text in (HOSTILE["templates"].replace("/", "-"), "&a [*a, *a]", "null"):
        Path(text).write_text("a text that is fine\n" * 40)
        flags = [f"--data.separator={text}", "--model.n_embd=8"]
        flags += ["--train.max_steps=1", "--train.sample_tokens=0", "--data.tokenizer=byte"]
        files = [f"--data.source={text}"] * 2
        assert train.main([DEBUG, *files, *flags, f"--run=run {text}"]) == 0
        assert {text, "cache", "runs"} <= set(os.listdir())
        read = load.read_yaml(Path("runs", f"run {text}", "config.yaml"))["data"]
        assert read["source"] == [text, text] and read["separator"] == text
        assert train.main([f"--resume=run {text}", "--train.max_steps=2"]) == 0
        assert sample.main([f"run {text}", f"--prompt={text}", "--max_new_tokens=1"]) == 0
    assert not Path("exploded").exists()
