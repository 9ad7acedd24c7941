"""A file of tensors says what was written to it, or is refused in one line; it runs no code."""

import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from common.errors import UserError
from run.checkpoint import check_finite, check_fit, copy_into, read_tensors, write_tensors
from training.size import memory_here

KIND = "test 1"
HEADER = '{"step": 7, "text": "a\\u00e9"}'
FIXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
OTHER_TYPES = [t for t in vars(torch).values() if isinstance(t, torch.dtype)]
OTHER_TYPES = [t for t in OTHER_TYPES if t not in (torch.float32, torch.float16, torch.uint8)]


def example() -> dict[str, Tensor]:
    return {
        "weight": torch.arange(6.0).view(2, 3).T,  # not contiguous
        "half": torch.tensor([0.5, -2.0]).half(),
        "generator": torch.tensor([0, 255], dtype=torch.uint8),
        "step": torch.tensor(3.0),
        "nothing": torch.zeros(0, 4),
    }


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "file", example(), KIND, HEADER)
    return tmp_path / "file"


def test_what_is_written_is_read(path: Path) -> None:
    header, tensors = read_tensors(path, KIND)
    assert header == HEADER and same(tensors, example())
    path.unlink()
    assert tensors["weight"].sum() == 15, "a copy, and no window into the file"


@given(st.data())
@FIXED
def test_a_flipped_bit_is_found_unless_it_says_nothing(path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    flipped = path.with_name("flipped")
    flipped.write_bytes(content)
    try:
        header, tensors = read_tensors(flipped, KIND)
    except UserError as error:
        assert str(error).startswith((f"{flipped} is damaged: ", f"{flipped} is not a file of"))
    else:
        assert header == HEADER and same(tensors, example())


@given(st.floats(0, 1, exclude_max=True))
@FIXED
def test_cut_anywhere_it_is_damaged(path: Path, fraction: float) -> None:
    cut = path.with_name("cut")
    cut.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    with pytest.raises(UserError, match="cut is damaged"):
        read_tensors(cut, KIND)


def test_no_other_type_of_tensors_is_read(tmp_path: Path) -> None:
    """Some have no numbers that a checksum, or a comparison, could look at."""
    tried = set()
    for dtype in OTHER_TYPES:
        try:
            x = torch.zeros(2, 16, dtype=torch.uint8).view(dtype)
            content = save({"x": x}, {"format": KIND})
        except (KeyError, RuntimeError):
            continue  # it cannot be saved
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(UserError, match="file is damaged: x is of a type that is never saved"):
            read_tensors(tmp_path / "file", KIND)
        tried.add(dtype)
    assert tried >= {torch.float8_e4m3fn, torch.bfloat16, torch.int64, torch.bool, torch.complex64}


def test_other_files_are_refused_in_one_line(workplace: Path) -> None:
    nothing = {"x": torch.zeros(1)}
    damaged = [b"", b"{}", struct.pack("<Q", 1 << 60) + b"{}", pickle.dumps("a pickle")]
    damaged += [save(nothing, {"format": KIND})]
    damaged += [save(nothing, {"format": KIND, "header": "", "crc32": "00000000"})]
    other = [save(nothing), save(nothing, {"format": "test 2", "header": "", "crc32": ""})]
    for contents, message in ((damaged, "is damaged: "), (other, "is not a file of this version")):
        for content in contents:
            Path("file").write_bytes(content)
            with pytest.raises(UserError, match=f"^file {message}") as error:
                read_tensors(Path("file"), KIND)
            assert "\n" not in str(error.value)
    os.mkfifo("pipe")
    writer = os.open("pipe", os.O_RDWR)  # so that whoever opens it does not wait for one
    Path("folder").mkdir()
    for name in ("absent", "pipe", "folder"):
        with pytest.raises(UserError, match=f"there is no {name}"):
            read_tensors(Path(name), KIND)
    os.close(writer)


def test_a_file_larger_than_half_of_the_memory_is_not_read(path: Path) -> None:
    """Its end is a hole, which takes no room on a disk and would in memory."""
    here = memory_here(torch.device("cpu"))
    if here is None:
        pytest.skip("this system does not tell its memory")
    os.truncate(path, here * 6 // 10)
    with pytest.raises(UserError, match=r"file would need [\d,]+ GB of memory at least"):
        read_tensors(path, KIND)


def test_a_failed_write_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"^could not write .*file: No space left on device; what"):
        write_tensors(path, {}, KIND)
    assert same(read_tensors(path, KIND)[1], example())
    assert list(path.parent.iterdir()) == [path]


def test_a_number_that_is_not_finite_is_found_anywhere() -> None:
    tried = example() | {"long": torch.zeros(70)}  # several vectors of a processor, and a rest
    check_finite(tried)
    for value in (torch.inf, -torch.inf, torch.nan):
        for name in ("weight", "half", "step", "long"):
            for place in range(tried[name].numel()):
                tensors = {key: tensor.clone() for key, tensor in tried.items()}
                tensors[name] = tensors[name].contiguous()
                tensors[name].view(-1)[place] = value
                line = rf"^{name} is not finite \(NaN or Inf\)$"
                with pytest.raises(FloatingPointError, match=line):
                    check_finite(tensors)


def test_tensors_fit_by_name_shape_and_type() -> None:
    expected = {"a.x": torch.zeros(2, 3), "a.y": torch.zeros(())}
    there = {"a.x": torch.ones(2, 3), "a.y": torch.ones(()), "b.z": torch.ones(9)}
    misfits: list[tuple[str, Tensor | None, str]] = [
        ("a.x", None, r"a.x is absent, should be float32 \(2, 3\)"),
        ("a.x", torch.ones(3, 2), r"a.x is float32 \(3, 2\), should be float32 \(2, 3\)"),
        ("a.x", torch.ones(2, 3).half(), r"a.x is float16 \(2, 3\), should be float32 \(2, 3\)"),
        ("a.y", torch.ones(1), r"a.y is float32 \(1,\), should be float32 \(\)"),
        ("a.z", torch.ones(2), r"a.z is float32 \(2,\), should be absent"),
    ]
    for name, tensor, message in misfits:
        tensors = {k: v for k, v in (there | {name: tensor}).items() if v is not None}
        for fit in (check_fit, copy_into):
            with pytest.raises(UserError, match=f"^file does not fit its own config: {message}$"):
                fit(expected, "a.", tensors, Path("file"))
    assert not any(tensor.any() for tensor in expected.values()), "something was copied"
    copy_into(expected, "a.", there, Path("file"))
    assert all(torch.equal(expected[name], there[name]) for name in expected)
