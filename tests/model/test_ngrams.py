"""The rows of n-gram embeddings, for n-grams whose number exceeds 64 bits."""

import torch
from torch import nn

from model.gpt import NGRAM_ROWS, NgramEmbeddings


def test_row_is_the_ngram_in_base_v_modulo_the_rows() -> None:
    V, text = 60_000, torch.randint(60_000, (1, 9))
    embeddings = NgramEmbeddings(6, V, 5)
    for i, table in enumerate(embeddings):
        weight = nn.init.zeros_(table.get_parameter("weight"))
        weight.data[:, i] = torch.arange(NGRAM_ROWS)
    found = embeddings(torch.zeros(1, 9, 5), text)
    (padded,) = torch.cat((torch.zeros(1, 5).long(), text), 1).tolist()  # padded with token 0
    for n in range(2, 7):
        numbers = [sum(padded[t - j] * V**j for j in range(n)) for t in range(5, 14)]
        assert found[0, :, n - 2].tolist() == [number % NGRAM_ROWS for number in numbers]
