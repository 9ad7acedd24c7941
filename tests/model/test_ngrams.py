"""The rows of n-grams: those that end with the token, in tables of a largest size."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

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
    sizes = [table.get_parameter("weight").size(0) for table in embeddings]
    assert sizes == [min(V**n, NGRAM_ROWS) for n in range(2, ngrams + 1)]
    for table, size in zip(embeddings, sizes, strict=True):
        table.get_parameter("weight").data[:, 0] = torch.arange(size)
    text = torch.randint(V, (2, sum(parts)), generator=torch.Generator().manual_seed(V))
    cache = Cache(1, 100)
    found = [embeddings(part, cache) for part in torch.split(text, parts, dim=1)]
    recent = F.pad(text, (ngrams, 0))[:, 1 - ngrams :]  # as many as are needed
    assert cache.recent_BN is not None and torch.equal(cache.recent_BN, recent)
    for i, (n, size) in enumerate(zip(range(2, ngrams + 1), sizes, strict=True)):
        rows = []
        for row in text.tolist():
            padded = [0] * (n - 1) + row
            grams = [padded[t : t + n] for t in range(len(row))]
            rows.append([sum(g * V**j for j, g in enumerate(reversed(gram))) for gram in grams])
        expected = torch.tensor([[number % size for number in row] for row in rows]).float()
        assert torch.equal(embeddings(text)[i][..., 0], expected)
        assert torch.equal(torch.cat([part[i] for part in found], 1)[..., 0], expected)
