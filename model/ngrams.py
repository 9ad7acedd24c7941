"""N-gram embeddings: a vector for the bigram, the trigram, ... that ends with each token."""

import torch
from torch import Tensor, nn

from model.cache import Cache

NGRAM_ROWS = 16_381  # a prime, so that n-grams that share a row have little else in common


class NgramEmbeddings(nn.ModuleList):
    """A table of vectors for each n from 2 to `ngrams`.

    An n-gram is a number to the base V, its last token the lowest digit. That number modulo the
    size of the table is its row, so that n-grams share rows where there are more than rows.
    """

    def __init__(self, ngrams: int, vocab_size: int, n_embd: int) -> None:
        rows = [min(vocab_size**n, NGRAM_ROWS) for n in range(2, ngrams + 1)]
        super().__init__(nn.Embedding(n, n_embd) for n in rows)
        self.rows, self.vocab_size = rows, vocab_size

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> list[Tensor]:
        """A (B, T, C) for each n. Before the first token all n-grams read token 0.

        Args:
            cache: has the tokens before these; updated.
        """
        (B, T), N = tokens_BT.shape, len(self)  # N tokens of history are all that is needed
        recent_BN = cache.recent_BN if cache is not None else None
        if recent_BN is None:
            recent_BN = tokens_BT.new_zeros(B, N)
        history = torch.cat((recent_BN, tokens_BT), dim=1)
        if cache is not None:
            cache.recent_BN = history[:, T:]
        vectors, number_BT = [], tokens_BT
        for i, (table, rows) in enumerate(zip(self, self.rows, strict=True), start=1):
            i_back_BT = history[:, N - i : N - i + T]
            number_BT = number_BT + i_back_BT * pow(self.vocab_size, i, NGRAM_ROWS)
            vectors.append(table(number_BT % rows))
        return vectors
