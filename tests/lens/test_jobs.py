"""What each head does, held against chance, and against heads that were planted."""

import string
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from configs.config import ModelConfig
from lens.answers import Matters, contrast, kinds_of_answers, what_matters
from lens.capture import capture
from lens.measure import mean_and_error
from lens.reads import find_reads, position_alone, weigh
from lens.targets import Reads, common_suffixes, find_targets, last_open
from model.gpt import GPT

V, T, H = 12, 48, 4
LABELS = string.ascii_lowercase[:V]
# Channels for the token, the position, and the token before.
PLAIN = ModelConfig(
    block_size=T,
    n_layer=2,
    n_head=H,
    n_embd=H * T,
    mlp_ratio=0,
    norm="none",
    positions="learned",
    qk_norm=False,
)


def draw_text(seed: int, count: int = 40, length: int = T) -> Tensor:
    """Draw random tokens."""
    return torch.randint(V, (count, length), generator=torch.Generator().manual_seed(seed))


class Planted(NamedTuple):
    model: GPT
    names: dict[int, str]
    """What a head attends to, by its number."""


@torch.no_grad()
def plant(seed: int) -> Planted:
    """Make a model with heads that attend to a fixed distance, to the last occurrence of a token,
    and to what followed the same token; the others are random."""
    generator = torch.Generator().manual_seed(seed)
    model = GPT(PLAIN, V).eval()

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (1,), generator=generator))

    for name, weight in model.named_parameters():
        # Noise in the embeddings would move the heads planted below to other tokens.
        weight.normal_(std=0.05 if name.startswith("blocks") else 0.002, generator=generator)
    token, position, before = range(V), range(V, V + T), range(V + T, 2 * V + T)
    assert model.position_embedding
    for table, channels in (
        (model.token_embedding, token),
        (model.position_embedding, position),
    ):
        table.weight[range(len(channels)), channels] += 1.0
    sharpness = 5.0 + number(0, 30) / 10

    def of_head(layer: int, head: int, part: str) -> Tensor:
        block: Any = model.blocks[layer]
        return getattr(block.attn, part).weight.view(H, T, -1)[head]

    def attend_back(layer: int, head: int, distance: int) -> None:
        of_head(layer, head, "query")[range(T - distance), position[distance:]] += 3.0
        of_head(layer, head, "key")[range(T), position] += sharpness * T**0.5 / 3

    back, chosen = number(2, 9), number(0, V - 1)
    attend_back(0, 0, back)
    attend_back(0, 1, 1)  # and copies the token, for the head of layer 1
    of_head(0, 1, "value")[range(V), token] += 1.0
    block: Any = model.blocks[0]
    block.attn.out.weight[before, range(T, T + V)] += 1.0
    for layer, head in ((0, 2), (1, 3)):  # later keys have higher scores
        of_head(layer, head, "query")[T - 1, position] += 3.0
        later = torch.arange(T) * T**0.5 / 3
        of_head(layer, head, "key")[T - 1, position] += later
    of_head(0, 2, "key")[T - 1, chosen] += 60 * T**0.5 / 3
    of_head(1, 3, "query")[range(V), token] += 60.0
    of_head(1, 3, "key")[range(V), before] += T**0.5
    names = {
        0: f"{back} back",
        1: "1 back",
        2: f"the last {LABELS[chosen]}",
        H + 3: "after the same token",
    }
    return Planted(model, names)


def read_heads(model: GPT, tokens: Tensor) -> list[list[Reads]]:
    heads = model.config.n_layer * model.config.n_head
    return find_reads(model, tokens, LABELS, [[] for _ in range(heads)], 1)


def name_of(reads: list[Reads]) -> str:
    return reads[0].target.split(",")[0] if reads else ""


@pytest.mark.parametrize("seed", range(3))
def test_planted_heads_are_named(seed: int) -> None:
    model, names = plant(seed)
    found = read_heads(model, draw_text(seed))
    assert {head: name_of(found[head]) for head in names} == names


@torch.no_grad()
def test_head_attends_to_something_only_where_it_matters() -> None:
    """L0H0 attends to each b from an a, and uniformly from other tokens; two of three sequences
    have answers, but are not read."""
    model, tokens = GPT(PLAIN, V).eval(), draw_text(1, 120)
    for weight in model.parameters():
        weight.zero_()
    model.token_embedding.weight[range(V), range(V)] = 1.0
    attn: Any = model.blocks[0].attn
    attn.query.weight[1, 0], attn.key.weight[1, 1] = 6.0, T**0.5
    at_a = Matters(["c"], True, (1.0, 0.1), 0.0, tokens == 0)
    matters = [[at_a], *[[] for _ in range(2 * H - 1)]]
    reads = find_reads(model, tokens[::3], LABELS, matters, 3)
    there = matters[0][0].reads
    assert reads[0] == [] and there and there.target == "every b" and there.weight > 0.9
    rare = torch.where((tokens == 1) & (torch.arange(120) % 5 < 3)[:, None], 2, tokens)
    matters[0] = [at_a]
    find_reads(model, rare[::3], LABELS, matters, 3)
    assert matters[0][0].reads is None  # most answers have no b before them


def test_untrained_heads_attend_to_nothing() -> None:
    config = ModelConfig(block_size=T, n_layer=5, n_head=10, n_embd=80)
    lines = 0
    for seed in range(101, 105):
        torch.manual_seed(seed)
        found = read_heads(GPT(config, V).eval(), draw_text(seed))
        lines += sum(map(bool, found))
    assert lines <= 2  # of 200


def test_answers_are_found_where_ablation_costs_most() -> None:
    """Of three heads, the first matters at two tokens, the second at copies, the third everywhere
    alike; what they cost is drawn for every answer."""
    tokens = draw_text(0, 60, T + 1)
    tokens[:, 30:40] = tokens[:, 10:20]  # copies of up to 10 tokens
    kinds = kinds_of_answers(tokens, LABELS)
    copied = kinds.at_NBT[kinds.names.index("copies of 4 or more")]
    of_tokens = (tokens[:, 1:] == 3) | (tokens[:, 1:] == 5)
    noise = torch.randn(3, 60, T, generator=torch.Generator().manual_seed(1))
    costs = 0.02 + 0.1 * noise + 0.5 * torch.stack((of_tokens, copied, torch.ones_like(copied)))
    first, second, third = what_matters(costs, tokens, LABELS)
    assert [{*first[0].names}, len(first)] == [{"d", "f"}, 1]
    assert torch.equal(first[0].at_BT, tokens[:, 1:] == LABELS.index(first[0].names[0]))
    assert first[0].there[0] == pytest.approx(0.52, abs=0.05)
    assert first[0].elsewhere == pytest.approx(0.02, abs=0.01)
    assert [each.answers for each in second] == ["copies of 4 or more"] and third == []


def test_answers_that_the_context_determines_come_first() -> None:
    tokens = draw_text(0, 60, T + 1)
    noise = torch.rand(2, 60, T, generator=torch.Generator().manual_seed(3))
    known, of_token = noise[0] < 0.1, tokens[:, 1:] == 3
    costs = 0.02 + 0.5 * known + 2.0 * of_token + 0.1 * noise[1]
    (found,) = what_matters(costs[None], tokens, LABELS, known_BT=known)
    assert [each.answers for each in found] == ["what the context determines", "d"]


def test_chance_matters_nowhere() -> None:
    tokens = draw_text(0, 60, T + 1)
    noise = torch.randn(100, 60, T, generator=torch.Generator().manual_seed(2))
    found = what_matters(0.02 + noise, tokens, LABELS)
    assert found == [[] for _ in noise]


def test_contrast_agrees_with_one_kind_at_a_time() -> None:
    changes = torch.randn(2, 9, T, generator=torch.Generator().manual_seed(3))
    at = torch.rand(3, 9, T, generator=torch.Generator().manual_seed(4)) < 0.2
    found = contrast(changes, at)
    for h, n in ((0, 0), (1, 2)):
        there, error = mean_and_error(changes[h], at[n])
        elsewhere, _ = mean_and_error(changes[h], ~at[n])
        assert float(found.there[h, n]) == pytest.approx(there, abs=1e-5)
        assert float(found.error[h, n]) == pytest.approx(error, abs=1e-5)
        assert float(found.elsewhere[h, n]) == pytest.approx(elsewhere, abs=1e-5)


def test_targets_are_those_of_a_plain_search() -> None:
    text = "a(bc'd 'e'[a(b"
    labels = sorted(set(text))
    tokens = torch.tensor([[labels.index(char) for char in text]])
    open_at = [-1, 1, 1, 1, 1, 1, 1, 7, 7, 1, 10, 10, 12, 12]
    assert last_open(tokens, labels)[0].tolist() == open_at
    lengths = common_suffixes(tokens)[0]
    for q in range(len(text)):
        for k in range(q):
            n = 0
            while n <= k and text[q - n] == text[k - n]:
                n += 1
            assert lengths[q, k] == n
    targets = find_targets(tokens, labels)
    keys = targets.key_BTN[0, -1]  # of the last query, after "a(b"
    found = {each.name: int(key) for each, key in zip(targets.names, keys, strict=False)}
    assert found["after the same 3 tokens"] == found["after the same token"] == 3
    assert found["the same token before"] == 2 and found["the last '"] == 9


def test_position_alone_keeps_the_weight_at_each_distance() -> None:
    """A head whose weights depend only on the distance explains itself; so content adds nothing."""
    weights = torch.ones(1, 6, 6).tril() * torch.tensor([5.0, 1, 1, 1, 1, 1])
    weights /= weights.sum(-1, keepdim=True)
    alone = position_alone(weights)
    assert torch.allclose(alone.sum(-1), torch.ones(1, 6))
    assert alone[0, 4, 1] == pytest.approx(float(alone[0, 4, 2]), rel=0.5)
    assert float(alone[0, 5, 0]) > 2 * float(alone[0, 5, 3])


def test_weights_are_sums_over_queries() -> None:
    """Compare a target of one key, a kind of keys, and a range of positions with plain loops."""
    model, tokens = plant(0).model, draw_text(9, 3)
    targets = find_targets(tokens, LABELS)
    (found,) = weigh(model, tokens, targets)
    number = {each.name: n for n, each in enumerate(targets.names)}
    A = capture(model, tokens).layers[0].weights_BHTS[1, 2]
    row = tokens[1].tolist()
    last = every = back = 0.0
    for q in range(T):
        keys = [k for k in range(q + 1) if row[k] == 4]
        last += float(A[q, keys[-1]]) if keys else 0.0
        every += float(A[q, keys].sum())
        back += float(A[q, q - 2]) if q >= 2 else 0.0
    for name, total in (("the last e", last), ("every e", every), ("2 back", back)):
        assert float(found.own_LHBN[0, 2, 1, number[name]]) == pytest.approx(total, abs=1e-3)
