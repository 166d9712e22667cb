"""Embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from .._tensor.tape import raw
from . import init
from .dense import check_sizes, new_parameter
from .module import Module
from .parameter import Parameter


class Embedding(Module):
    """A table of num_embeddings rows: integers (...) -> (..., embedding_dim).

    weight (num_embeddings, embedding_dim) starts standard normal; row padding_idx starts as 0 and
    gets no gradient. See `functional.embedding`.

    >>> from fusednn import nn
    >>> nn.Embedding(10, 3)(np.array([[1, 2]])).shape
    (1, 2, 3)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        scale_grad_by_freq: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes("Embedding", 0, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(
                f"Embedding: padding_idx={padding_idx} is out of range for {num_embeddings} rows"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.scale_grad_by_freq = scale_grad_by_freq
        self.weight = new_parameter(num_embeddings, embedding_dim, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the table anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight._data[self.padding_idx] = 0

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """A layer with a copy of this table (num_embeddings, embedding_dim)."""
        table = raw(embeddings)
        if np.ndim(table) != 2:
            raise ValueError(
                f"Embedding: embeddings have shape {np.shape(table)}, expected (rows, width)"
            )
        rows, width = table.shape
        layer = cls(rows, width, padding_idx, dtype=table.dtype)
        layer.weight = Parameter(table, requires_grad=not freeze)
        return layer

    def forward(self, input: Any) -> Any:
        """Integers (...) -> (..., embedding_dim)."""
        return F.embedding(
            input, self.weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
