"""Files that anyone may have made: what is damaged, hostile, or of another kind is refused in one
line, nothing in it is run, and no run is left that keeps the name."""

import contextlib
import json
import os
import pickle
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import convert
from run.checkpoint import open_run
from tests.formats.models import edit_json, make_theirs, save_tokenizer
from tests.formats.test_import import MADE
from tests.formats.test_nanogpt import CHARS, SIZES, save, save_meta, weights_of

Refuse = Callable[..., str]
CONFIG, TOKENS, WEIGHTS = (
    Path("theirs") / name for name in ("config.json", "tokenizer.json", "model.safetensors")
)
CKPT, META = Path("nanoGPT/out/ckpt.pt"), Path("nanoGPT/data/shakespeare_char/meta.pkl")


@pytest.fixture
def refuse(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """The one line that a command ends with; everything is as it was."""

    def line_of(*argv: str) -> str:
        before = sorted(Path().rglob("*"))
        capsys.readouterr()
        assert convert.main(list(argv)) == 2, argv
        line = capsys.readouterr().err
        assert line.startswith("error: ") and line.count("\n") == 1 and len(line) < 1000, line
        assert line[:-1].isprintable() and "Traceback" not in line
        assert sorted(Path().rglob("*")) == before, "something is left"
        return line.removeprefix("error: ").removesuffix("\n")

    return line_of


@pytest.fixture(scope="session")
def others(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each class."""
    made = {"GPT2": gpt2}
    for name in ("Persimmon", "Llama"):
        made[name] = tmp_path_factory.mktemp("others") / name
        make_theirs(name, **MADE[name][1]).save_pretrained(made[name])
        save_tokenizer(made[name])
    return made


@pytest.fixture
def theirs(gpt2: Path, workplace: Path) -> Path:
    """A copy of GPT-2, to be spoiled."""
    shutil.copytree(gpt2, "theirs")
    return workplace / "theirs"


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """What asks for more than a GB from here on gets none, rather than all that there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Runs:
    """A pickle that leaves a trace where it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, ("touch exploded",)


# --- config.json ---------------------------------------------------------------------------------


def test_a_config_that_is_none(theirs: Path, refuse: Refuse) -> None:
    whole = CONFIG.read_bytes()
    damaged = [b"", whole[:-9], b"[]", b"3", b"\xff\0", b"[" * 100_000, b'{"a": ' + b"9" * 9999]
    for content in damaged:
        CONFIG.write_bytes(content)
        assert f"{CONFIG} is damaged" in refuse("import", "theirs", "--run=g")
    CONFIG.unlink()
    assert refuse("import", "theirs", "--run=g") == f"there is no {CONFIG}"
    CONFIG.mkdir()
    assert refuse("import", "theirs", "--run=g") == f"there is no {CONFIG}"
    CONFIG.rmdir()
    CONFIG.touch()
    os.truncate(CONFIG, 2**40)
    assert "too many for what it should be" in refuse("import", "theirs", "--run=g")


SIZES_OF = {
    "GPT2": ["vocab_size", "n_positions", "n_layer", "n_head", "n_embd"],
    "Persimmon": ["vocab_size", "max_position_embeddings", "num_hidden_layers", "hidden_size"],
    "Llama": ["num_hidden_layers", "num_attention_heads", "hidden_size"],
}
NO_SIZES = [..., None, "24", 24.0, 0, -1, True, [24], 10**9, 10**400, "\x1b[31m" * 999]
THETA, PARTIAL = {"rope_theta": 25_000.0}, {"partial_rotary_factor": 0.5}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *((kind, {"model_type": "bert"}, "model_type is 'bert'; only") for kind in SIZES_OF),
    *(("GPT2", {"model_type": x}, "model_type is ") for x in (..., None, 5, "GPT2", ["gpt2"])),
    ("GPT2", {"n_inner": 95}, "n_inner is 95; only None or 96 is computed here"),
    ("GPT2", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06; only 1e-05"),
    ("GPT2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ("GPT2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is True"),
    ("GPT2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
    ("GPT2", {"add_cross_attention": True}, "add_cross_attention is True"),
    *(("GPT2", {"activation_function": x}, "activation_func") for x in ("silu", None, ["gelu"])),
    ("GPT2", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ("GPT2", {"tie_word_embeddings": False}, "lm_head.weight is absent, should be (300, 24)"),
    ("GPT2", {"n_head": 5}, "n_embd 24 must be divisible by n_head 5"),
    ("GPT2", {"n_layer": 3}, "transformer.h.2.ln_1.weight is absent, should be (24,)"),
    ("GPT2", {"n_layer": 1}, "theirs: transformer.h.1.attn.c_attn.bias has no place in a gpt2"),
    ("GPT2", {"n_positions": 31}, "transformer.wpe.weight is float32 (32, 24), should be (31, 24)"),
    ("GPT2", {"n_positions": 10**8}, "should be (100000000, 24)"),
    ("GPT2", {"n_embd": 10**8}, "n_embd must be in [1, 1e5], got 100000000"),
    ("GPT2", {"n_layer": 10**8}, "n_layer must be in [1, 1000]"),
    ("GPT2", {"vocab_size": 299}, "it has 300 tokens, and the model knows 299"),
    ("GPT2", {"vocab_size": 301}, "wte.weight is float32 (300, 24), should be (301, 24)"),
    ("GPT2", {"vocab_size": 10**9 - 1}, "it has 300 tokens, and the model knows 999999999"),
    ("Persimmon", {"intermediate_size": 64}, "intermediate_size is 64; only 96"),
    ("Persimmon", {"layer_norm_eps": 1e-6}, "layer_norm_eps is 1e-06; only 1e-05"),
    ("Persimmon", {"rope_parameters": PLAIN | THETA}, "rope_theta is 25000.0; only 10000.0"),
    ("Persimmon", {"rope_parameters": PLAIN | PARTIAL}, "partial_rotary_factor is 0.5; only 1.0"),
    ("Persimmon", {"rope_parameters": ...}, "rope_theta is 25000.0; only 10000.0"),
    ("Persimmon", {"rope_parameters": ..., "rope_theta": 1e4}, "partial_rotary_factor is 0.5"),
    ("Persimmon", {"rope_parameters": ..., "rope_theta": "x"}, "rope_theta is 'x'; only"),
    ("Persimmon", {"rope_parameters": [1]}, "rope_parameters is [1]"),
    ("Persimmon", {"rope_parameters": PLAIN | {"rope_type": "linear"}}, "rope_type is 'linear'"),
    ("Persimmon", {"hidden_act": "silu"}, "hidden_act is 'silu'; only gelu or gelu_new"),
    ("Persimmon", {"qk_layernorm": False}, "k_layernorm.weight has no place in a persimmon"),
    ("Persimmon", {"qk_layernorm": 1}, "qk_layernorm is 1; only True or False"),
    ("Persimmon", {"num_attention_heads": 6}, "layernorm.weight is float32 (12,), should be (4,)"),
    ("Persimmon", {"num_attention_heads": 24}, "n_embd / n_head must be even"),
    ("Persimmon", {"max_position_embeddings": 10**9 - 1}, "block_size must be in [1, 1e8]"),
    ("Llama", {"max_position_embeddings": 10**8}, "GB of memory at least"),
    ("Llama", {"intermediate_size": 65}, "intermediate_size is 65; only 64"),
    ("Llama", {"num_key_value_heads": 1}, "num_key_value_heads is 1; only 2"),
    ("Llama", {"head_dim": 24}, "head_dim is 24; only None or 12"),
    ("Llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only silu"),
    ("Llama", {"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06; only 1e-05"),
    ("Llama", {"rms_norm_eps": ...}, "rms_norm_eps is 1e-06; only 1e-05"),
    ("Llama", {"rope_parameters": PLAIN | THETA}, "rope_theta is 25000.0; only 10000.0"),
    ("Llama", {"rope_parameters": ..., "rope_theta": 5e5}, "rope_theta is 500000.0"),
    ("Llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is {"),
    ("Llama", {"rope_parameters": PLAIN | {"rope_type": "llama3"}}, "rope_type is 'llama3'"),
    (
        "Llama",
        {"rope_parameters": {"type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        "rope_type is 'linear'",
    ),
]


@pytest.mark.parametrize("kind", SIZES_OF)
def test_sizes_that_are_none(
    others: dict[str, Path], workplace: Path, refuse: Refuse, kind: str
) -> None:
    shutil.copytree(others[kind], "theirs")
    whole = CONFIG.read_text()
    for name in SIZES_OF[kind]:
        for value in NO_SIZES:
            CONFIG.write_text(whole)
            edit_json(CONFIG, **{name: value})
            assert f"{CONFIG}: {name} is " in refuse("import", "theirs", "--run=g")


@pytest.mark.parametrize("kind", SIZES_OF)
def test_what_is_not_computed_here(
    others: dict[str, Path], workplace: Path, refuse: Refuse, kind: str
) -> None:
    shutil.copytree(others[kind], "theirs")
    whole = CONFIG.read_text()
    for case, changes, message in WRONG:
        if case == kind:
            CONFIG.write_text(whole)
            edit_json(CONFIG, **changes)
            with little_memory():
                assert message in refuse("import", "theirs", "--run=g"), changes
    CONFIG.write_text(whole)
    if kind == "GPT2":
        assert convert.main(["import", "theirs", "--run=g"]) == 0, "the name is taken"


def test_theta_is_the_same_as_a_whole_number_and_in_either_place(
    others: dict[str, Path], workplace: Path
) -> None:
    """And what is refused above is refused for that only."""
    shutil.copytree(others["Llama"], "theirs")
    same: list[dict[str, Any]] = [
        {"rope_parameters": PLAIN | {"rope_theta": 10_000}},
        {"rope_parameters": ..., "rope_theta": 10_000},
        {"rope_parameters": None, "rope_theta": 10_000.0, "rope_scaling": None},
    ]
    for i, changes in enumerate(same):
        edit_json(CONFIG, **changes)
        assert convert.main(["import", "theirs", f"--run={i}"]) == 0


REFUSED_THERE: list[dict[str, Any]] = [
    {"bos_token_id": "x"},
    {"dtype": "nonsense"},
    {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    {"_attn_implementation": "nonsense"},
    {"initializer_range": {"a": [1]}},
]


@pytest.mark.parametrize("changes", REFUSED_THERE, ids=lambda changes: next(iter(changes)))
def test_what_transformers_refuses_ends_in_one_line(
    theirs: Path, refuse: Refuse, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Or it is read all the same: what it is about is not what is computed here."""
    edit_json(CONFIG, **changes)
    if convert.main(["import", "theirs", "--run=g"]) == 0:
        assert (Path("runs/g") / "last.safetensors").is_file()
    else:
        assert "theirs" in refuse("import", "theirs", "--run=g")


def test_code_in_a_folder_is_not_run(theirs: Path) -> None:
    code = "open('exploded', 'w')\nclass GPT2LMHeadModel: pass\nclass GPT2Config: pass\n"
    Path("theirs/modeling_gpt2.py").write_text(code)
    named = {"AutoConfig": "modeling_gpt2.GPT2Config"}
    named |= {"AutoModelForCausalLM": "modeling_gpt2.GPT2LMHeadModel"}
    edit_json(CONFIG, auto_map=named, custom_generate="modeling_gpt2")
    assert convert.main(["import", "theirs", "--run=g"]) == 0
    assert not list(Path().rglob("exploded"))


# --- weights -------------------------------------------------------------------------------------

NAME = "transformer.h.1.mlp.c_fc.weight"
SPOILED: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (lambda t: t.pop(NAME), f"{NAME} is absent, should be (24, 96)"),
    "extra": (lambda t: t.update({"more": torch.ones(2)}), "transformer.more has no place"),
    "odd": (lambda t: t.update({"\x1b[31m": torch.ones(2)}), "has no place in a gpt2"),
    "transposed": (lambda t: t.update({NAME: t[NAME].t().contiguous()}), f"{NAME} is float32 (96"),
    "a scalar": (lambda t: t.update({NAME: torch.tensor(1.0)}), f"{NAME} is float32 ()"),
    "empty": (lambda t: t.update({NAME: torch.ones(0)}), f"{NAME} is float32 (0,)"),
    "int64": (lambda t: t.update({NAME: t[NAME].long()}), f"{NAME} is of type I64"),
    "float64": (lambda t: t.update({NAME: t[NAME].double()}), f"{NAME} is of type F64"),
    "bool": (lambda t: t.update({NAME: t[NAME] > 0}), f"{NAME} is of type BOOL"),
    "NaN": (lambda t: t[NAME].view(-1)[5].fill_(torch.nan), f"{NAME} is not finite"),
    "Inf": (lambda t: t["transformer.wpe.weight"][0, 0].fill_(torch.inf), "wpe.weight is not fin"),
    "another head": (
        lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"] + 1}),
        "lm_head.weight has no place",
    ),
    "a bias that ours lack": (
        lambda t: t.update({"lm_head.bias": torch.ones(300)}),
        "lm_head.bias has no place",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_weights_that_do_not_fit(theirs: Path, refuse: Refuse, name: str) -> None:
    spoil, message = SPOILED[name]
    tensors = load_file(WEIGHTS)
    spoil(tensors)
    save_file(tensors, WEIGHTS)
    assert message in refuse("import", "theirs", "--run=g")


def test_biases_of_qk_norm_are_not_computed_here(
    others: dict[str, Path], workplace: Path, refuse: Refuse
) -> None:
    shutil.copytree(others["Persimmon"], "theirs")
    assert convert.main(["import", "theirs", "--run=fine"]) == 0
    tensors = load_file(WEIGHTS)
    name = "model.layers.1.self_attn.q_layernorm.bias"
    tensors[name][3] = 0.1
    save_file(tensors, WEIGHTS)
    assert f"{name} has no place in a persimmon" in refuse("import", "theirs", "--run=g")


def test_what_says_nothing_is_left_out(theirs: Path) -> None:
    """A tied head that was saved too, and a bias of zeros."""
    tensors = load_file(WEIGHTS)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    tensors["lm_head.bias"] = torch.zeros(300)
    save_file(tensors, WEIGHTS)
    edit_json(CONFIG, tie_word_embeddings=True)
    assert convert.main(["import", "theirs", "--run=g"]) == 0


def test_files_of_weights_that_are_none(theirs: Path, refuse: Refuse) -> None:
    whole = WEIGHTS.read_bytes()
    for content in (b"", whole[:-1], whole[:40], whole + b"x", b"\xff" * 99, b"{}"):
        WEIGHTS.write_bytes(content)
        assert str(WEIGHTS) in refuse("import", "theirs", "--run=g")
    WEIGHTS.unlink()
    assert refuse("import", "theirs", "--run=g") == "theirs has no model.safetensors"
    Path("theirs/pytorch_model.bin").write_bytes(pickle.dumps(Runs()))
    line = refuse("import", "theirs", "--run=g")
    assert "pytorch_model.bin is a pickle, which is never opened" in line
    Path("theirs/pytorch_model.bin").unlink()
    WEIGHTS.mkdir()
    assert refuse("import", "theirs", "--run=g") == "theirs has no model.safetensors"
    assert not Path("exploded").exists()


@pytest.mark.parametrize("names", [{}, [], 3, "no index", "outside"], ids=str)
def test_an_index_that_is_none(theirs: Path, refuse: Refuse, names: Any) -> None:
    """What it names lies beside it."""
    shutil.copyfile(WEIGHTS, "elsewhere.safetensors")
    shutil.move(WEIGHTS, "theirs/part.safetensors")
    index = WEIGHTS.with_suffix(".safetensors.index.json")
    if names == "no index":
        for content in ("", "[]", "{}", '{"weight_map": null}'):
            index.write_text(content)
            assert f"{index} is damaged" in refuse("import", "theirs", "--run=g")
    elif names == "outside":
        here = str(Path("elsewhere.safetensors").absolute())
        others = ["../elsewhere.safetensors", here, "..", ".", "", "part.bin", 5, None, ["a"]]
        for name in others:
            index.write_text(json.dumps({"weight_map": {"a": "part.safetensors", "b": name}}))
            assert f"{index} is damaged: it should" in refuse("import", "theirs", "--run=g")
        for name in ("absent.safetensors", "a\0.safetensors"):
            index.write_text(json.dumps({"weight_map": {"a": name}}))
            assert refuse("import", "theirs", "--run=g").startswith("there is no theirs/a")
        index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "part.safetensors"}}))
        assert convert.main(["import", "theirs", "--run=g"]) == 0
    else:
        index.write_text(json.dumps({"weight_map": names}))
        assert f"{index} is damaged" in refuse("import", "theirs", "--run=g")


# --- tokenizers ----------------------------------------------------------------------------------


def in_model(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda plain: plain["model"].update(changes)


def in_all(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda plain: plain.update(changes)


def renumber(token: str, number: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda plain: plain["model"]["vocab"].update({token: number})


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
WORDS = {"type": "WordLevel", "unk_token": "<unknown>"}


def words(*tokens: str) -> Callable[[dict[str, Any]], Any]:
    """A tokenizer of as many tokens as the model knows, these among them."""
    rest = [chr(0x4E00 + i) for i in range(300 - len(tokens))]
    vocab = {token: i for i, token in enumerate([*tokens, *rest])}
    return in_all(model=WORDS | {"vocab": vocab}, pre_tokenizer=SPLIT, added_tokens=[])


def added(**token: Any) -> Callable[[dict[str, Any]], Any]:
    plain = {"id": 299, "content": "<|endoftext|>", "special": True} | token
    return in_all(added_tokens=[{name: v for name, v in plain.items() if v is not ...}])


STRANGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Unigram": in_all(model={"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}),
    "Unigram with a dictionary": in_model(type="Unigram"),
    "WordPiece": in_model(type="WordPiece"),
    "no kind": in_model(type=5),
    "a normalizer": in_all(normalizer={"type": "NFC"}),
    "a space before": in_all(pre_tokenizer=BYTES | {"add_prefix_space": True}),
    "no words": in_all(pre_tokenizer=BYTES | {"use_regex": False}),
    "no bytes": in_all(pre_tokenizer=None),
    "words by spaces": in_all(pre_tokenizer={"type": "Whitespace"}),
    "other words": in_all(pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}),
    "dropout": in_model(dropout=0.1),
    "byte fallback": in_model(byte_fallback=True),
    "merges of a suffix": in_model(end_of_word_suffix="h"),
    "merges of a prefix": in_model(continuing_subword_prefix="h"),
    "merges that are ignored": in_model(ignore_merges=True),
    "no merges": in_model(merges=[]),
    "merges null": in_model(merges=None),
    "merges 5": in_model(merges=5),
    "merges of numbers": in_model(merges=[[1, 2]]),
    "merges of three": in_model(merges=["a b c"]),
    "merges of what is no token": in_model(merges=["zq y"]),
    "one merge": in_model(merges=["a b"]),
    "a gap": renumber("a", 1000),
    "a number twice": renumber("a", 5),
    "a number below": renumber("a", -1),
    "no number": renumber("a", "64"),
    "null for a number": renumber("a", None),
    "a number with a point": renumber("a", 64.0),
    "more tokens": renumber("more", 300),
    "bytes in another order": lambda plain: plain["model"]["vocab"].update({"a": 65, "b": 64}),
    "vocab a list": in_model(vocab=[["a", 0]]),
    "model a list": in_all(model=[]),
    "model null": in_all(model=None),
    "added tokens a dictionary": in_all(added_tokens={"a": 1}),
    "added tokens 5": in_all(added_tokens=5),
    "added tokens numbers": in_all(added_tokens=[1, 2]),
    "an added token without a name": added(content=...),
    "an added token that is a number": added(content=5),
    "an added token that is no text": added(content="\ud800"),
    "an added token without a number": added(id=...),
    "an added token beyond": added(id=999),
    "an added token twice": in_all(added_tokens=[{"id": 298, "content": "<|endoftext|>"}] * 2),
    "an added token that is a sub-word": in_all(
        added_tokens=[{"id": 299, "content": "<|endoftext|>"}, {"id": 64, "content": "a"}]
    ),
    "characters of two": words("ab"),
    "characters of none and of two": words("", "ab"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_tokenizers_of_other_kinds(theirs: Path, refuse: Refuse, name: str) -> None:
    plain = json.loads(TOKENS.read_text())
    STRANGE[name](plain)
    TOKENS.write_text(json.dumps(plain))
    assert str(TOKENS) in refuse("import", "theirs", "--run=g")
    assert str(TOKENS) in refuse("import", "theirs", "--run=g", "--tokenizer=theirs")


def test_files_of_tokens_that_are_none(theirs: Path, refuse: Refuse) -> None:
    whole = TOKENS.read_bytes()
    for content in (b"", whole[:-9], b"[]", b"5", b"null", b"\xff\0", b"[" * 100_000):
        TOKENS.write_bytes(content)
        assert f"{TOKENS} is damaged" in refuse("import", "theirs", "--run=g")
    TOKENS.write_bytes(b"{}")
    assert str(TOKENS) in refuse("import", "theirs", "--run=g")
    TOKENS.unlink()
    assert "theirs has no tokenizer" in refuse("import", "theirs", "--run=g")
    assert "nowhere has no tok" in refuse("import", "theirs", "--run=g", "--tokenizer=nowhere")
    save_tokenizer(Path("theirs"), "vocab.json")
    merges = Path("theirs/merges.txt")
    whole = merges.read_bytes()
    for content in (
        whole + b"\xff\xfe\n",
        whole[: len(whole) // 2],
        b"",
        b"a\n",
        b"a b c\n",
        b"\0",
    ):
        merges.write_bytes(content)
        assert "theirs/" in refuse("import", "theirs", "--run=g")
    merges.write_bytes(whole.replace(b"\n", b"\r\n"))
    assert convert.main(["import", "theirs", "--run=windows"]) == 0
    merges.unlink()
    assert "merges.txt" in refuse("import", "theirs", "--run=g")


def test_more_tokens_than_a_run_can_have(workplace: Path, refuse: Refuse) -> None:
    """One more than --data.vocab_size may say; rows of the model, which its text never has."""
    make_theirs("GPT2", n_positions=4, n_embd=2, n_layer=1, n_head=1).save_pretrained("theirs")
    save_tokenizer(Path("theirs"))
    tensors, V = load_file(WEIGHTS), 1_000_001
    save_file(tensors | {"transformer.wte.weight": torch.ones(V, 2)}, WEIGHTS, {"format": "pt"})
    edit_json(CONFIG, vocab_size=V)
    assert "1000001" in refuse("import", "theirs", "--run=g")


# --- nanoGPT's checkpoints -----------------------------------------------------------------------


@pytest.fixture
def ckpt(workplace: Path) -> dict[str, Any]:
    """What is in a checkpoint whose characters are there too."""
    save(SIZES, weights_of(SIZES, True))
    save_meta()
    plain: dict[str, Any] = torch.load(CKPT, weights_only=True)
    return plain


def test_a_checkpoint_that_is_none(ckpt: dict[str, Any], refuse: Refuse) -> None:
    whole = CKPT.read_bytes()
    pickles = [pickle.dumps(Runs()), pickle.dumps({"model": Runs()}, protocol=2)]
    for content in (b"", whole[:-9], whole[:999], whole[999:], b"text", *pickles):
        CKPT.write_bytes(content)
        assert f"{CKPT} is no checkpoint" in refuse("import", str(CKPT), "--run=g")
    for spoiled in (ckpt | {"more": Runs()}, {"model": Runs(), "model_args": SIZES}):
        torch.save(spoiled, CKPT)
        assert f"{CKPT} is no checkpoint of tensors" in refuse("import", str(CKPT), "--run=g")
    others: list[Any] = [[ckpt], torch.ones(3), 5, {}, {"model": {}}, {"model_args": SIZES}]
    for other in others:
        torch.save(other, CKPT)
        assert f"{CKPT} is no checkpoint" in refuse("import", str(CKPT), "--run=g")
    assert not list(Path().rglob("exploded"))
    CKPT.unlink()
    line = refuse("import", str(CKPT), "--run=g")
    assert line.startswith(f"there is no {CKPT}; name a folder of transformers, hub:OWNER/NAME, or")
    os.mkfifo(CKPT)
    assert "there is no nanoGPT" in refuse("import", str(CKPT), "--run=g")


WPE = "transformer.wpe.weight"
ARGS: list[tuple[dict[str, Any], str]] = [
    *(({name: ...}, f"{name} is None") for name in SIZES),
    *(({name: "3"}, f"{name} is '3'") for name in SIZES),
    ({"n_head": 5}, "n_embd 18 must be divisible by n_head 5"),
    ({"n_embd": 10**8}, "n_embd must be in"),
    ({"n_layer": 10**8}, "n_layer must be in"),
    ({"n_layer": 3}, "transformer.h.2.ln_1.weight is absent"),
    ({"block_size": 10**8}, f"{WPE} is float32 (20, 18), should be (100000000, 18)"),
    ({"vocab_size": 999_999_999}, "transformer.wte.weight is float32"),
]


def test_sizes_of_a_checkpoint(ckpt: dict[str, Any], refuse: Refuse) -> None:
    for changes, message in ARGS:
        args = {n: v for n, v in (ckpt["model_args"] | changes).items() if v is not ...}
        torch.save(ckpt | {"model_args": args}, CKPT)
        assert message in refuse("import", str(CKPT), "--run=g")
    for name in ("model_args", "model"):
        torch.save(ckpt | {name: [5]}, CKPT)
        assert "it has no model_args" in refuse("import", str(CKPT), "--run=g")


TENSORS: dict[str, tuple[Any, str]] = {
    "missing": (..., f"{WPE} is absent"),
    "text": ("x", "holds no numbers"),
    "null": (None, "holds no numbers"),
    "integers": (torch.ones(20, 18).long(), "holds no numbers"),
    "of another shape": (torch.ones(18, 20), f"{WPE} is float32 (18, 20), should be (20, 18)"),
    "NaN": (torch.full((20, 18), torch.nan), "is not finite"),
    "sparse": (torch.eye(20, 18).to_sparse(), WPE),
    "on no device": (torch.empty(20, 18, device="meta"), WPE),
    "far larger than its file": (torch.ones(1, 1).expand(10**8, 10**8), WPE),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_a_checkpoint(ckpt: dict[str, Any], refuse: Refuse, name: str) -> None:
    tensor, message = TENSORS[name]
    weights = {n: t for n, t in (ckpt["model"] | {WPE: tensor}).items() if t is not ...}
    torch.save(ckpt | {"model": weights}, CKPT)
    assert message in refuse("import", str(CKPT), "--run=g")


def test_characters_that_are_none(ckpt: dict[str, Any], refuse: Refuse) -> None:
    """A class in a pickle is never looked up, whichever it is."""
    import collections

    good = dict(enumerate(CHARS))
    wrong: list[Any] = [
        *(None, 5, [], {}, {"itos": None}, {"itos": list(CHARS)}, {"itos": {}}, {"stoi": good}),
        *({"itos": good | {3: "ab"}}, {"itos": good | {3: ""}}, {"itos": good | {3: 5}}),
        *({"itos": good | {3: CHARS[4]}}, {"itos": {i + 1: c for i, c in good.items()}}),
    ]
    for plain in wrong:
        META.write_bytes(pickle.dumps(plain))
        assert f"{META} has no itos of single characters" in refuse("import", str(CKPT), "--run=g")
    classes: list[Any] = [
        Runs(),
        {"itos": good, "more": Runs()},
        collections.OrderedDict(itos=good),
    ]
    classes += [{"itos": good, "more": len}, {"itos": good, "more": Path("x")}]
    whole = pickle.dumps({"itos": good})
    global_ = b"cos\nsystem\n(S'touch exploded'\ntR."
    damaged = [
        b"",
        whole[:-2],
        whole[5:],
        b"\x80\x04\x8e" + b"\xff" * 8,
        b"[" * 999,
        b"P1\n.",
        global_,
    ]
    for content in (*map(pickle.dumps, classes), *damaged):
        META.write_bytes(content)
        assert f"{META} is no plain data" in refuse("import", str(CKPT), "--run=g")
    assert not list(Path().rglob("exploded"))
    save_meta(str(META), CHARS + "X")
    line = refuse("import", str(CKPT), "--run=g")
    assert f"{META} has {len(CHARS) + 1} tokens, and the model of {CKPT} knows {len(CHARS)}" in line
    META.unlink()
    line = refuse("import", str(CKPT), "--run=g")
    assert f"there is no {META.absolute()}; say which tokens {CKPT} knows: --tokenizer" in line
    assert "there is no x.pkl" in refuse("import", str(CKPT), "--run=g", "--tokenizer=x.pkl")
    save_meta("nanoGPT/elsewhere/meta.pkl")
    for config in (None, 5, {}, {"dataset": None}, {"dataset": "../elsewhere"}, {"dataset": 5}):
        torch.save(ckpt | {"config": config}, CKPT)
        assert "--tokenizer meta.pkl" in refuse("import", str(CKPT), "--run=g")
    save_meta(str(META))
    torch.save(ckpt, CKPT)
    assert convert.main(["import", str(CKPT), "--run=g"]) == 0


def test_a_text_in_a_folder_with_a_name_that_is_no_text(
    ckpt: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    if sys.platform != "linux":
        pytest.skip("names are text here")
    META.with_name("input.txt").write_text("some text\n")
    os.rename("nanoGPT", b"nano\xff")
    argv = ["import", os.fsdecode(b"nano\xff/out/ckpt.pt"), "--run=g"]
    if convert.main(argv) == 2:
        assert capsys.readouterr().err.startswith("error: ")
    assert not Path("runs/g").exists() or open_run(Path("runs/g"))
