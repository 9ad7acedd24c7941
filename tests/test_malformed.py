"""Command lines and config files with one mistake in each, generated: every one ends with exit
code 2 and one line that names the culprit, and leaves nothing behind."""

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import sample
import study
import train
from benchmarks import recipe, reliability, sampling, throughput, time_to_loss
from configs.load import SECTIONS, Config, make_parser, to_plain

Flags = dict[str, Any]
Command = tuple[Callable[..., int], list[str], Flags]


def flags_of(*sections: dict[str, type]) -> Flags:
    """The flags of a command by name, with their types."""
    return make_parser({name: kind for part in sections for name, kind in part.items()}).types


COMMANDS: list[Command] = [
    (train.main, [], flags_of({"": train.Options}, SECTIONS)),
    (sample.main, [], flags_of({"": sample.Options})),
    *((study.main, [verb], flags_of({"": kind})) for verb, (kind, _) in study.VERBS.items()),
    (recipe.main, [], flags_of({"": recipe.Options}, SECTIONS)),
    (reliability.main, [], flags_of({"": reliability.Options})),
    (sampling.main, [], flags_of({"": sampling.Options})),
    (throughput.main, [], flags_of({"": throughput.Options})),
    (time_to_loss.main, [], flags_of({"": time_to_loss.Options}, SECTIONS)),
]
LETTERS = "abcdefghijklmnopqrstuvwxyz_"
words = st.text(LETTERS, min_size=1, max_size=12)
negative = st.integers(max_value=-1).map(str) | st.floats(-1e30, -1e-30).map(str)


def wrong(hint: Any) -> st.SearchStrategy[str]:
    """What a flag of this type cannot be."""
    if hint is int:
        return words | st.sampled_from(["", "1.5", "[1]", "null", "true", "{}", "1 2", "inf", "0x"])
    if hint is float:
        return words.filter(lambda word: word not in ("nan", "inf")) | st.sampled_from(
            ["", "[1]", "null", "true", "nan", "1,5", "1e", "--"]
        )
    if hint is bool:
        return words.filter(lambda w: w not in ("true", "false")) | st.sampled_from(["", "2", "[]"])
    if get_origin(hint) is Literal:
        return words.filter(lambda word: word not in get_args(hint)) | st.just("")
    return st.nothing()


@st.composite
def bad_flags(draw: st.DrawFn) -> tuple[Callable[..., int], list[str], str]:
    """A command, its arguments, and what its message should name."""
    main, verb, flags = draw(st.sampled_from(COMMANDS))
    known = draw(st.sampled_from(sorted(flags)))
    hint = flags[known]
    mistake = draw(st.sampled_from(["unknown", "type", "sign", "value", "words"]))
    culprit, argv = f"--{known}", [f"--{known}"]
    if mistake == "unknown":
        place = draw(st.integers(0, len(known)))
        kept = draw(st.integers(0, 1))  # of the letter at that place
        culprit = f"--{known[:place]}{draw(words)}{known[place + 1 - kept :]}"
        assume(culprit.removeprefix("--") not in (*flags, "help"))
        argv = [f"{culprit}=1"]
    elif mistake == "type":
        argv = [f"{culprit}={draw(wrong(hint) if hint is not str else st.nothing())}"]
    elif mistake == "sign":
        assume(hint in (int, float))
        argv = [f"{culprit}={draw(negative if hint is float else st.integers(max_value=-1))}"]
    elif mistake == "value":
        assume(hint is not bool)
    else:
        culprit = " ".join(draw(st.lists(words, min_size=2, max_size=3)))
        argv = culprit.split()
    return main, [*verb, *argv], culprit


def refused(main: Callable[..., int], argv: list[str]) -> str:
    """The one line that a command ends with."""
    before = sorted(os.listdir())
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        assert main(argv) == 2, argv
    line = said.getvalue()
    assert line.startswith("error: ") and line.count("\n") == 1, line
    assert sorted(os.listdir()) == before, "something is left"
    return line


@given(bad_flags())
@settings(suppress_health_check=list(HealthCheck), max_examples=470)
def test_a_command_line_with_a_mistake(
    workplace: Path, command: tuple[Callable[..., int], list[str], str]
) -> None:
    main, argv, culprit = command
    assert culprit in refused(main, argv), argv


not_plain = st.none() | st.lists(st.integers(), max_size=2) | st.dictionaries(words, words)


@st.composite
def bad_files(draw: st.DrawFn) -> tuple[bytes, str]:
    """A config file and what the message should name."""
    plain: dict[str, Any] = to_plain(Config())
    section = draw(st.sampled_from(sorted(plain)))
    key = draw(st.sampled_from(sorted(plain[section])))
    hint = flags_of(SECTIONS)[f"{section}.{key}"]
    mistake = draw(st.sampled_from(["key", "section", "value", "sign", "cut", "bytes", "twice"]))
    culprit = key
    if mistake == "key":
        culprit = draw(words.filter(lambda word: word not in plain[section]))
        plain[section][culprit] = 1
    elif mistake == "section":
        culprit = draw(words.filter(lambda word: word not in plain))
        plain[culprit] = {}
    elif mistake == "value":
        plain[section][key] = draw(not_plain)
        assume(plain[section][key] is None or key != "source")
    elif mistake == "sign":
        assume(hint in (int, float))
        plain[section][key] = draw(st.integers(-(10**30), -1)) * (1 if hint is int else 0.5)
    text = yaml.safe_dump(plain, sort_keys=False)
    if mistake == "cut":
        culprit, text = (
            "config.yaml",
            text + draw(st.sampled_from(["{", "]", "a", "\tb: 1", "? x"])),
        )
    elif mistake == "twice":
        text = text.replace(f"\n  {key}:", f"\n  {key}: 1\n  {key}:", 1)
    content = text.encode()
    if mistake == "bytes":
        culprit, place = "config.yaml", draw(st.integers(0, len(content)))
        content = (
            content[:place] + draw(st.sampled_from([b"\xff", b"\x00", b"\x1b"])) + content[place:]
        )
    return content, culprit


@given(bad_files())
@settings(suppress_health_check=list(HealthCheck), max_examples=80)
def test_a_config_file_with_a_mistake(workplace: Path, file: tuple[bytes, str]) -> None:
    content, culprit = file
    (workplace / "config.yaml").write_bytes(content)
    assert culprit in refused(train.main, ["config.yaml"]), content.decode(errors="replace")
