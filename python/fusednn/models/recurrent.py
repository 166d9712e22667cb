"""Recurrent networks for text, for sequences of one kind, and for time series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from .._tensor.device import beside, host, is_array
from .._tensor.mode import no_grad
from .._tensor.shape import cat
from .._tensor.tape import Array, raw
from .generate import Sampler, collect, padded_prompts, sample


class CharLSTM(nn.Module):
    """Token ids (N, T) -> logits (N, T, vocab_size) of each next token, and the state behind them.

    `embedding` (a table vocab_size x embedding_dim; none if embedding_dim is None: tokens are then
    one-hot), `lstm` (num_layers of hidden_size), `dropout` on what it gives, and `head`, a linear
    layer. The state, a pair (h, c) of shape (num_layers, N, hidden_size), can be given to the next
    call, which then goes on behind these tokens. Graves, "Generating sequences with recurrent
    neural networks", 2013.

    >>> from fusednn.models import CharLSTM
    >>> net = CharLSTM(vocab_size=10, hidden_size=8, embedding_dim=4).eval()
    >>> logits, state = net(np.array([[1, 2, 3]]))
    >>> logits.shape, net.generate([[1, 2], [3]], 2, temperature=0)[1].shape
    ((1, 3, 10), (3,))
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int = 256,
        num_layers: int = 1,
        embedding_dim: int | None = 64,
        dropout: float = 0.0,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding: nn.Embedding | None
        if embedding_dim is None:
            self.embedding = None
        else:
            self.embedding = nn.Embedding(vocab_size, embedding_dim, dtype=dtype)
        self.lstm = nn.LSTM(
            vocab_size if embedding_dim is None else embedding_dim, hidden_size, num_layers,
            batch_first=True, dropout=dropout if num_layers > 1 else 0.0, dtype=dtype,
        )  # fmt: skip
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size, vocab_size, dtype=dtype)

    def forward(self, ids: Any, state: Any = None, *, lengths: Any = None) -> tuple[Any, Any]:
        """Integers (N, T) -> (logits (N, T, vocab_size), (h, c)); lengths (N,): see `F.lstm`."""
        hidden, state = self.lstm(self._embedded(ids), state, lengths=lengths)
        return self.head(self.dropout(hidden)), state

    def _embedded(self, ids: Any) -> Any:
        array = raw(ids) if is_array(raw(ids)) else np.asarray(ids)
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise ValueError(
                f"CharLSTM: ids have shape {array.shape} and dtype {array.dtype}, expected "
                "integers (N, T)"
            )
        if self.embedding is not None:
            return self.embedding(array)
        return F.one_hot(array, self.vocab_size).astype(self.head.weight.dtype)

    def stream(
        self,
        prompts: Sequence[Any],
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
    ) -> Iterator[Array]:
        """Yields the next token of every prompt, (N,) at a time; -1 once a prompt's text has ended.

        Arguments as `GPT.generate`; there is no limit to the length.
        """
        sampler = Sampler(temperature, top_k, top_p)
        ids, lengths = padded_prompts(prompts, self.vocab_size)
        decoding = _Decoding(self, ids, lengths)
        return sample(decoding, len(ids), max_new_tokens, sampler, eos)

    def generate(
        self,
        prompts: Sequence[Any],
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
    ) -> list[Array]:
        """Each prompt with what the model makes of it: int64 arrays, up to `eos` (included).

        Arguments as `GPT.generate`. Every step costs the same, however long the text has become.
        """
        rows = [np.asarray(host(raw(one)), np.int64) for one in prompts]
        steps = self.stream(
            prompts, max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, eos=eos
        )
        return [np.concatenate(pair) for pair in zip(rows, collect(steps, len(rows)), strict=True)]


class _Decoding:
    """Texts under way: the state is all that is kept of them."""

    def __init__(self, model: CharLSTM, ids: Array, lengths: Array) -> None:
        self.model, self.lengths = model, lengths
        # The padding of prompts stands in front; here it belongs behind.
        self.prompts = np.zeros_like(ids)
        for row, to, length in zip(ids, self.prompts, lengths.tolist(), strict=True):
            to[:length] = row[len(row) - length :]
        self.state: Any = None

    def __call__(self, tokens: Array | None, parents: Array | None) -> Array:
        weight = raw(self.model.head.weight)
        with no_grad():
            if tokens is None:
                prompts = beside(self.prompts, weight)
                logits, self.state = self.model(prompts, lengths=self.lengths)
                last = host(raw(logits))[np.arange(len(self.lengths)), self.lengths - 1]
            else:
                logits, self.state = self.model(beside(tokens[:, None], weight), self.state)
                last = host(raw(logits)[:, -1])
        found: Array = last
        return found


class LSTMClassifier(nn.Module):
    """Sequences (N, T, input_size) -> scores (N, classes), from the state at each one's own end.

    `lstm` (num_layers of hidden_size, in both directions if bidirectional), `dropout` on the last
    layer's state (both directions side by side), and `head`, a linear layer.

    >>> from fusednn.models import LSTMClassifier
    >>> net = LSTMClassifier(input_size=3, hidden_size=4, classes=2, bidirectional=True)
    >>> net(np.zeros((3, 7, 3), np.float32), lengths=np.array([7, 1, 3])).shape
    (3, 2)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        classes: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_size, hidden_size, num_layers, batch_first=True, bidirectional=bidirectional,
            dropout=dropout if num_layers > 1 else 0.0, dtype=dtype,
        )  # fmt: skip
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size * (2 if bidirectional else 1), classes, dtype=dtype)

    def forward(self, x: Any, lengths: Any = None) -> Any:
        """Scores (N, classes); lengths (N,): what lies behind them is never read."""
        _, (h, _) = self.lstm(x, lengths=lengths)
        state = cat([h[-2], h[-1]], 1) if self.lstm.bidirectional else h[-1]
        return self.head(self.dropout(state))


class RNNForecaster(nn.Module):
    """Values (N, T, input_size) -> what comes after each of them, (N, T, input_size).

    `rnn` (plain recurrent layers with tanh) and `head`, a linear layer at every step: y_t = W h_t +
    b. Elman, "Finding structure in time", Cognitive Science 14 (1990).

    >>> from fusednn.models import RNNForecaster
    >>> net = RNNForecaster(input_size=1, hidden_size=4)
    >>> y, h = net(np.zeros((5, 7, 1), np.float32))
    >>> y.shape, h.shape
    ((5, 7, 1), (1, 5, 4))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, dtype: Any = None
    ) -> None:
        super().__init__()
        self.rnn = nn.RNN(input_size, hidden_size, num_layers, batch_first=True, dtype=dtype)
        self.head = nn.Linear(hidden_size, input_size, dtype=dtype)

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        """(values one step on, state h behind the last)."""
        hidden, state = self.rnn(x, state)
        return self.head(hidden), state


__all__ = ["CharLSTM", "LSTMClassifier", "RNNForecaster"]
