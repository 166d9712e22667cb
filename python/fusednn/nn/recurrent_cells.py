"""Recurrent cells: single steps, with PyTorch's parameter names and gate order."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import functional as F
from .dense import check_sizes, new_parameter
from .parameter import Parameter
from .recurrent import Recurrent, check_nonlinearity, reset


class _Cell(Recurrent):
    """What the three cells share."""

    gates: ClassVar[int]
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        dtype: Any,
        forget_bias: float | None = None,
    ) -> None:
        super().__init__()
        check_sizes(type(self).__name__, 0, input_size=input_size)
        check_sizes(type(self).__name__, 1, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.forget_bias = forget_bias
        rows = self.gates * hidden_size
        self.weight_ih = new_parameter(rows, input_size, dtype=dtype)
        self.weight_hh = new_parameter(rows, hidden_size, dtype=dtype)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, new_parameter(rows, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew, uniform in +-1 / sqrt(hidden_size)."""
        reset(self, self.hidden_size, self.gates, self.forget_bias)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        return text if self.bias_ih is not None else f"{text}, bias=False"


class RNNCell(_Cell):
    """One step of a plain recurrent network; see `functional.rnn_cell`.

    >>> from fusednn import nn
    >>> nn.RNNCell(3, 2)(np.zeros((5, 3), np.float32)).shape
    (5, 2)
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: Any = None,
    ) -> None:
        check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, state: Any = None) -> Any:
        """(N, I), h (N, H) or None -> h (N, H)."""
        return F.rnn_cell(
            input,
            state,
            self.weight_ih,
            self.weight_hh,
            self.bias_ih,
            self.bias_hh,
            self.nonlinearity,
        )


class LSTMCell(_Cell):
    """One step of an LSTM; see `functional.lstm_cell`.

    >>> from fusednn import nn
    >>> h, c = nn.LSTMCell(3, 2)(np.zeros((5, 3), np.float32))
    >>> h.shape, c.shape
    ((5, 2), (5, 2))
    """

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        forget_bias: float | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype, forget_bias)

    def forward(self, input: Any, state: Any = None) -> Any:
        """(N, I), (h, c), each (N, H), or None -> (h, c)."""
        return F.lstm_cell(input, state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)


class GRUCell(_Cell):
    """One step of a GRU; see `functional.gru_cell`.

    >>> from fusednn import nn
    >>> nn.GRUCell(3, 2)(np.zeros((5, 3), np.float32)).shape
    (5, 2)
    """

    gates = 3

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype)

    def forward(self, input: Any, state: Any = None) -> Any:
        """(N, I), h (N, H) or None -> h (N, H)."""
        return F.gru_cell(input, state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)


__all__ = ["GRUCell", "LSTMCell", "RNNCell"]
