"""The rows of n-grams: those that end with the token, in tables of a largest size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from model.cache import Cache
from model.ngrams import NGRAM_ROWS, NgramEmbeddings


@given(
    st.integers(2, 6),
    st.sampled_from([1, 2, 17, 200, 60_000]),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_the_row_is_the_ngram_as_a_number_to_the_base_v(
    ngrams: int, V: int, parts: list[int]
) -> None:
    """Modulo the rows; before the text is token 0; read in parts with a cache, it is the same."""
    embeddings = NgramEmbeddings(ngrams, V, 1)
    text = torch.randint(V, (2, sum(parts)), generator=torch.Generator().manual_seed(V))
    for table in embeddings:
        weight = table.get_parameter("weight")
        weight.data[:, 0] = torch.arange(len(weight))  # a row's vector is its number
    whole, cache = embeddings(text), Cache(1, 100)
    found = [embeddings(part, cache) for part in torch.split(text, parts, dim=1)]
    for i, n in enumerate(range(2, ngrams + 1)):
        padded = [[0] * (n - 1) + row for row in text.tolist()]
        numbers = [
            [sum(row[t + n - 1 - j] * V**j for j in range(n)) for t in range(sum(parts))]
            for row in padded
        ]
        rows = min(V**n, NGRAM_ROWS)
        expected = torch.tensor([[number % rows for number in row] for row in numbers]).float()
        assert torch.equal(whole[i][..., 0], expected)
        assert torch.equal(torch.cat([part[i] for part in found], 1)[..., 0], expected)
