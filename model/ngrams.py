"""N-gram embeddings: a vector for the bigram, the trigram, ... that ends with each token."""

from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import Cache

NGRAM_ROWS = 16_381  # a prime, so that n-grams that share a row have little else in common


class NgramEmbeddings(nn.ModuleList):
    """A table of vectors for each n from 2 to `ngrams`.

    An n-gram is a number in base V, with its last token as the lowest digit. That number modulo the
    size of the table is its row, so that n-grams share rows where there are more n-grams than rows.
    """

    def __init__(self, ngrams: int, vocab_size: int, n_embd: int) -> None:
        super().__init__(
            nn.Embedding(min(vocab_size**n, NGRAM_ROWS), n_embd) for n in range(2, ngrams + 1)
        )
        self.vocab_size = vocab_size

    def forward(self, x_BTC: Tensor, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Add the vectors of the n-grams of each n to `x`. Before the first token all n-grams read
        token 0.

        Args:
            cache: has the tokens before these; updated.
        """
        T, N = tokens_BT.size(1), len(self)  # N tokens of history are all that is needed
        history = F.pad(tokens_BT, (N, 0))
        if cache:
            history[:, :N] = cache.recent_BN
            cache.recent_BN = history[:, T:]
        number_BT = tokens_BT
        for i, table in enumerate(self, start=1):
            previous_BT = history.narrow(1, N - i, T)  # the token i positions back
            number_BT = number_BT + previous_BT * pow(self.vocab_size, i, NGRAM_ROWS)
            x_BTC = x_BTC + table(number_BT % NGRAM_ROWS)
        return x_BTC
