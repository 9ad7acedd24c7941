"""The rows of n-grams, where there are more of them than 64-bit numbers."""

import torch

from model.ngrams import NGRAM_ROWS, NgramEmbeddings


def test_the_row_is_the_ngram_as_a_number_to_the_base_v() -> None:
    V, text = 60_000, torch.randint(60_000, (1, 9))
    embeddings = NgramEmbeddings(6, V, 1)
    for table in embeddings:
        table.get_parameter("weight").data[:, 0] = torch.arange(NGRAM_ROWS)
    (padded,) = torch.cat((torch.zeros(1, 5).long(), text), 1).tolist()  # token 0 is before it
    for n, found in zip(range(2, 7), embeddings(text), strict=True):
        numbers = [sum(padded[t - j] * V**j for j in range(n)) for t in range(5, 14)]
        assert found.flatten().tolist() == [number % NGRAM_ROWS for number in numbers]
