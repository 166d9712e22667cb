"""Recurrent layers, with PyTorch's parameter names, gate order and state order."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar, Self

import numpy as np

from .. import functional as F
from .._tensor.device import is_bfloat16, is_device
from ..functional.packed import LayerWeights, PackedWeights
from . import init
from .dense import check_sizes, new_parameter
from .module import Module, cast_float
from .parameter import Parameter
from .utils.rnn import PackedSequence, through


def reset(module: Module, hidden_size: int, gates: int, forget_bias: float | None) -> None:
    bound = 1 / math.sqrt(hidden_size)
    for name, parameter in module.named_parameters(recurse=False):
        init.uniform_(parameter, -bound, bound)
        if forget_bias is not None and name.startswith("bias") and gates == 4:
            # The two biases are added; the forget gate's rows come second.
            value = forget_bias if name.startswith("bias_ih") else 0.0
            parameter._data[hidden_size : 2 * hidden_size] = value


class Recurrent(Module):
    """What all of them share: weights that may be bfloat16 beside float32, on the CPU."""

    def to(self, *targets: Any, dtype: Any = None, device: Any = None) -> Self:
        """As `Module.to`; also to(ml_dtypes.bfloat16), for inference: weights of half the size,
        rounded to 8 bits of precision, which no longer require grad. Inputs and states stay
        float32, and so does what is computed. to(np.float32) widens the weights again. On a GPU
        the layer then computes in bfloat16, as all modules.

        >>> import ml_dtypes
        >>> from fusednn import nn
        >>> layer = nn.GRU(3, 2).to(ml_dtypes.bfloat16)
        >>> layer(np.zeros((4, 5, 3), np.float32))[0].dtype
        dtype('float32')
        """
        half = [t for t in (*targets, dtype) if is_bfloat16(t)]
        places = [t for t in (*targets, device) if is_device(t)]
        own = next(iter(self.parameters())).device
        if not half or (places[-1] if places else own) != "cpu":
            return super().to(*targets, dtype=dtype, device=device)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            cast_float(parameter, np.dtype(half[0]), "cpu")
            parameter._grad = None
        return self


class _Stack(Recurrent):
    """What RNN, LSTM and GRU share."""

    gates: ClassVar[int]
    normalised: ClassVar[bool] = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        dtype: Any,
        recurrent_dropout: float,
        variational: bool,
        checkpoint_every: int | None,
        forget_bias: float | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, 0, input_size=input_size, proj_size=proj_size)
        check_sizes(name, 1, hidden_size=hidden_size, num_layers=num_layers)
        if checkpoint_every is not None:
            check_sizes(name, 1, checkpoint_every=checkpoint_every)
        for option, p in (("dropout", dropout), ("recurrent_dropout", recurrent_dropout)):
            if not 0 <= p <= 1:
                raise ValueError(f"{name}: {option}={p}, expected a probability in [0, 1]")
        if dropout and num_layers == 1:
            warnings.warn(
                f"{name}: dropout={dropout} has no effect with num_layers=1: it is applied between "
                "layers",
                stacklevel=3,
            )
        if proj_size >= hidden_size:
            raise ValueError(
                f"{name}: proj_size={proj_size}, expected less than hidden_size={hidden_size}"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self.recurrent_dropout = float(recurrent_dropout)
        self.variational = variational
        self.checkpoint_every = checkpoint_every
        self.forget_bias = forget_bias
        directions = 2 if bidirectional else 1
        outputs, rows = proj_size or hidden_size, self.gates * hidden_size
        for layer in range(num_layers):
            inputs = directions * outputs if layer else input_size
            for suffix in (f"_l{layer}", f"_l{layer}_reverse")[:directions]:
                shapes: dict[str, tuple[int, ...]]
                shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, outputs)}
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                if self.normalised:
                    shapes |= {"gain_ih": (rows,), "gain_hh": (rows,), "gain_c": (hidden_size,)}
                    if bias:
                        shapes["bias_c"] = (hidden_size,)
                for kind, shape in shapes.items():
                    self.register_parameter(kind + suffix, new_parameter(*shape, dtype=dtype))
        self._names = tuple(self._parameters)
        self._packed = PackedWeights()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew, uniform in +-1 / sqrt(hidden_size); forget_bias, if given, is
        what the two biases of the forget gate add up to."""
        reset(self, self.hidden_size, self.gates, self.forget_bias)

    def _weights(self) -> list[Parameter]:
        state = self.__dict__
        weights = LayerWeights([state[name] for name in self._names])
        weights.packed = self._packed
        return weights

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters, one list for each layer and direction."""
        weights = self._weights()
        count = len(weights) // (self.num_layers * (2 if self.bidirectional else 1))
        return [weights[i : i + count] for i in range(0, len(weights), count)]

    def forward(self, input: Any, state: Any = None, *, lengths: Any = None) -> Any:
        """(T, N, I) -> (T, N, D * H), and the states (num_layers * D, N, H) at the sequences' ends;
        a `PackedSequence` -> a PackedSequence, and the states in the order it was packed in."""
        if isinstance(input, PackedSequence):
            return through(type(self).__name__, self._padded_steps, input, state, lengths)
        return self._run(input, state, lengths, self.batch_first)

    def _padded_steps(self, input: Any, state: Any, lengths: Any) -> Any:
        return self._run(input, state, lengths, False)

    def _run(self, input: Any, state: Any, lengths: Any, batch_first: bool) -> Any:
        raise NotImplementedError

    def flatten_parameters(self) -> None:
        """Does nothing: weights need no special layout here."""

    def _options(self) -> dict[str, Any]:
        return {
            "dropout": self.dropout,
            "training": self.training,
            "bidirectional": self.bidirectional,
            "recurrent_dropout": self.recurrent_dropout,
            "variational": self.variational,
            "checkpoint_every": self.checkpoint_every,
        }

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if not self.bias:
            text += ", bias=False"
        for name in (
            "batch_first", "dropout", "bidirectional", "recurrent_dropout", "variational",
            "checkpoint_every",
        ):  # fmt: skip
            if getattr(self, name):
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(_Stack):
    """A stack of plain recurrent layers: h' = act(W_ih x + b_ih + W_hh h + b_hh).

    Called with (x, state=None, *, lengths=None); see `functional.rnn` for shapes, lengths and
    errors. Returns (output, h_n). x may be a `utils.rnn.PackedSequence`: then the output is one,
    and h_n stands in the order it was packed in. nonlinearity "tanh", "relu" or "identity".
    Parameters: weight_ih_l{k} (H, I), weight_hh_l{k} (H, H), bias_ih_l{k}, bias_hh_l{k}, and with
    the suffix _reverse those of the other direction.

    In training, dropout stands between the layers, recurrent_dropout before weight_hh: one mask for
    all steps of a sequence, as dropout's is if variational. checkpoint_every saves memory. See
    `functional.rnn`.

    >>> from fusednn import nn
    >>> out, h = nn.RNN(3, 2)(np.zeros((4, 5, 3), np.float32))
    >>> out.shape, h.shape
    ((4, 5, 2), (1, 5, 2))
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        recurrent_dropout: float = 0.0,
        variational: bool = False,
        checkpoint_every: int | None = None,
        dtype: Any = None,
    ) -> None:
        check_nonlinearity("RNN", nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0,
            dtype, recurrent_dropout, variational, checkpoint_every,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

    def _run(self, input: Any, state: Any, lengths: Any, batch_first: bool) -> Any:
        return F.rnn(
            input,
            state,
            self._weights(),
            self.num_layers,
            nonlinearity=self.nonlinearity,
            batch_first=batch_first,
            lengths=lengths,
            **self._options(),
        )

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.nonlinearity == "tanh" else f"{text}, nonlinearity={self.nonlinearity}"


class LSTM(_Stack):
    """A stack of LSTM layers.

    Called with (x, state=None, *, lengths=None), state being (h_0, c_0); see `functional.lstm` for
    shapes, lengths and errors. Returns (output, (h_n, c_n)). x may be packed, as `RNN`'s. proj_size
    projects h to fewer values. forget_bias sets what the forget gate's biases add up to at the
    start; 1 keeps the memory open (Jozefowicz, Zaremba and Sutskever, ICML 2015). Parameters as
    `RNN`'s with 4 H rows, gates in the order i, f, g, o, and weight_hr_l{k} (P, H).

    >>> from fusednn import nn
    >>> out, (h, c) = nn.LSTM(3, 2, batch_first=True)(np.zeros((5, 4, 3), np.float32))
    >>> out.shape, h.shape, c.shape
    ((5, 4, 2), (1, 5, 2), (1, 5, 2))
    """

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        forget_bias: float | None = None,
        recurrent_dropout: float = 0.0,
        variational: bool = False,
        checkpoint_every: int | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size, dtype, recurrent_dropout, variational, checkpoint_every, forget_bias,
        )  # fmt: skip

    def _run(self, input: Any, state: Any, lengths: Any, batch_first: bool) -> Any:
        return F.lstm(
            input, state, self._weights(), self.num_layers, batch_first=batch_first,
            lengths=lengths, **self._options(),
        )  # fmt: skip


class LayerNormLSTM(_Stack):
    """A stack of LSTM layers whose two products and cell are layer-normalised.

    As `LSTM` (without proj_size), with gates = gain_ih LN(weight_ih x) + bias_ih + gain_hh
    LN(weight_hh h) + bias_hh and h' = s(o) tanh(gain_c LN(c') + bias_c); see
    `functional.layer_norm_lstm`. Parameters besides the LSTM's: gain_ih_l{k}, gain_hh_l{k} (4 H,),
    gain_c_l{k}, bias_c_l{k} (H,). Gains start at 1, biases at 0, with forget_bias in the place of
    the forget gate.

    >>> from fusednn import nn
    >>> out, (h, c) = nn.LayerNormLSTM(3, 2)(np.zeros((4, 5, 3), np.float32))
    >>> out.shape, h.shape, c.shape
    ((4, 5, 2), (1, 5, 2), (1, 5, 2))
    """

    gates = 4
    normalised = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        eps: float = 1e-5,
        forget_bias: float | None = None,
        recurrent_dropout: float = 0.0,
        variational: bool = False,
        checkpoint_every: int | None = None,
        dtype: Any = None,
    ) -> None:
        if not 0 < eps < math.inf:
            raise ValueError(f"LayerNormLSTM: eps={eps}, expected a number above 0")
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0,
            dtype, recurrent_dropout, variational, checkpoint_every, forget_bias,
        )  # fmt: skip
        self.eps = eps

    def reset_parameters(self) -> None:
        """Draws the weights anew, uniform in +-1 / sqrt(hidden_size); gains become 1, biases 0, and
        that of the forget gate forget_bias, if given."""
        super().reset_parameters()
        for name, parameter in self._parameters.items():
            if parameter is not None and not name.startswith("weight"):
                parameter._data[...] = 1 if name.startswith("gain") else 0
                if name.startswith("bias_ih") and self.forget_bias is not None:
                    parameter._data[self.hidden_size : 2 * self.hidden_size] = self.forget_bias

    def _run(self, input: Any, state: Any, lengths: Any, batch_first: bool) -> Any:
        return F.layer_norm_lstm(
            input, state, self._weights(), self.num_layers, eps=self.eps, batch_first=batch_first,
            lengths=lengths, **self._options(),
        )  # fmt: skip


class GRU(_Stack):
    """A stack of GRU layers, the reset gate behind the product with h.

    Called with (x, state=None, *, lengths=None); see `functional.gru` for shapes, lengths and
    errors. Returns (output, h_n). x may be packed, as `RNN`'s, and parameters are as its with 3 H
    rows, gates in the order r, z, n.

    >>> from fusednn import nn
    >>> out, h = nn.GRU(3, 2, bidirectional=True)(np.zeros((4, 5, 3), np.float32))
    >>> out.shape, h.shape
    ((4, 5, 4), (2, 5, 2))
    """

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        recurrent_dropout: float = 0.0,
        variational: bool = False,
        checkpoint_every: int | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0,
            dtype, recurrent_dropout, variational, checkpoint_every,
        )  # fmt: skip

    def _run(self, input: Any, state: Any, lengths: Any, batch_first: bool) -> Any:
        return F.gru(
            input, state, self._weights(), self.num_layers, batch_first=batch_first,
            lengths=lengths, **self._options(),
        )  # fmt: skip


def check_nonlinearity(owner: str, nonlinearity: str) -> None:
    if nonlinearity not in ("tanh", "relu", "identity"):
        raise ValueError(
            f"{owner}: nonlinearity={nonlinearity!r}, expected 'tanh', 'relu' or 'identity'"
        )


__all__ = ["GRU", "LSTM", "RNN", "LayerNormLSTM"]
