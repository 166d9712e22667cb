"""Recurrent networks: single steps, and whole sequences through stacks of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, random
from .._tensor.autocast import autocasting, narrowed
from .._tensor.device import beside, on_gpu
from .._tensor.mode import grad_enabled
from .._tensor.tape import Gradients, Node, TensorBase, needs, raw, record_outputs, wrap
from .packed import LayerWeights

# ---- single steps --------------------------------------------------------------------------------


def rnn_cell(
    input: Any,
    h: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any = None,
    b_hh: Any = None,
    nonlinearity: str = "tanh",
) -> Any:
    """One step of a plain recurrent network: act(w_ih x + b_ih + w_hh h + b_hh).

    input (N, I) or (I,), h (N, H) or (H,) or None for zeros, w_ih (H, I), w_hh (H, H), biases (H,),
    both or none -> (N, H) or (H,). nonlinearity "tanh", "relu" or "identity". float32 or float64,
    not mixed. ValueError for shapes that do not fit, TypeError for other dtypes.

    Elman, "Finding structure in time", Cognitive Science 14 (1990).

    >>> import numpy as np, fusednn.functional as F
    >>> F.rnn_cell(np.ones((1, 1)), np.ones((1, 1)), np.eye(1), np.eye(1), nonlinearity="identity")
    array([[2.]])
    """
    return _step("rnn_cell", nonlinearity, input, h, None, w_ih, w_hh, b_ih, b_hh)[0]


def lstm_cell(
    input: Any,
    state: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any = None,
    b_hh: Any = None,
) -> Any:
    """One step of an LSTM: (h, c) -> (h, c).

    input (N, I) or (I,); state: h and c, each (N, H) or (H,), or None for zeros; w_ih (4 H, I),
    w_hh (4 H, H), biases (4 H,), both or none; the gates stand in the order i, f, g, o:
    c' = s(f) c + s(i) tanh(g), h' = s(o) tanh(c') with the logistic function s. ValueError for
    shapes that do not fit, TypeError for other dtypes.

    Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9 (1997); forget gate:
    Gers, Schmidhuber and Cummins, "Learning to forget", Neural Computation 12 (2000).

    >>> import numpy as np, fusednn.functional as F
    >>> h, c = F.lstm_cell(np.ones((5, 3)), None, np.zeros((8, 3)), np.zeros((8, 2)))
    >>> h.shape, c.shape
    ((5, 2), (5, 2))
    """
    h, c = _pair("lstm_cell", state)
    return _step("lstm_cell", "tanh", input, h, c, w_ih, w_hh, b_ih, b_hh)


def gru_cell(
    input: Any,
    h: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any = None,
    b_hh: Any = None,
) -> Any:
    """One step of a GRU.

    input (N, I) or (I,), h (N, H) or (H,) or None for zeros, w_ih (3 H, I), w_hh (3 H, H), biases
    (3 H,), both or none -> (N, H) or (H,). Gates r, z, n; the reset gate stands behind the product:
    n = tanh(w_in x + b_in + r (w_hn h + b_hn)), h' = (1 - z) n + z h. ValueError for shapes that do
    not fit, TypeError for other dtypes.

    Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014.

    >>> import numpy as np, fusednn.functional as F
    >>> F.gru_cell(np.ones((1, 3)), np.ones((1, 2)), np.zeros((6, 3)), np.zeros((6, 2)))
    array([[0.5, 0.5]])
    """
    return _step("gru_cell", "tanh", input, h, None, w_ih, w_hh, b_ih, b_hh)[0]


def _step(
    op: str, nonlinearity: str, input: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any,
    b_hh: Any,
) -> tuple[Any, ...]:  # fmt: skip
    if (b_ih is None) != (b_hh is None):
        raise ValueError(f"{op}: one of b_ih and b_hh is None, expected both or none")
    weights = (w_ih, w_hh) if b_ih is None else (w_ih, w_hh, b_ih, b_hh)
    return _run((op, nonlinearity, 1, False, False), input, h, c, weights, None, None)[1:]


def _pair(op: str, state: Any) -> tuple[Any, Any]:
    if state is None:
        return None, None
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(f"{op}: state must be None or a pair (h, c), got {type(state).__name__}")
    h, c = state
    if (h is None) != (c is None):
        raise ValueError(f"{op}: one of h and c is None, expected both or none")
    return h, c


# ---- sequences -----------------------------------------------------------------------------------


def rnn(
    input: Any,
    state: Any,
    weights: Sequence[Any],
    num_layers: int = 1,
    *,
    nonlinearity: str = "tanh",
    dropout: float = 0.0,
    training: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Any = None,
    recurrent_dropout: float = 0.0,
    variational: bool = False,
    checkpoint_every: int | None = None,
) -> Any:
    """`rnn_cell` over whole sequences and a stack of layers -> (output, h_n).

    input (T, N, I), (N, T, I) if batch_first, or (T, I). state: h_0 (num_layers * D, N, H) with
    D = 2 if bidirectional, else 1, or None for zeros. weights: for each layer and direction w_ih,
    w_hh and, in all or none, b_ih, b_hh; in one flat sequence, as PyTorch's modules hold them.
    output is the last layer's (T, N, D * H), h_n laid out as h_0.

    lengths (N,), integers in any order, 0 to T: what lies behind a sequence's end is never read,
    its output is 0, and h_n is the state at its own end (h_0 for a length of 0).

    Only if training, dropout is applied to the output of every layer but the last, with a mask of
    its own at each step or, if variational, with one for all of them; recurrent_dropout to h on its
    way into w_hh, with one mask for all steps of a sequence, the first and h_0 among them (Gal and
    Ghahramani, "A theoretically grounded application of dropout in recurrent neural networks",
    NIPS 2016). Masks come from `manual_seed`'s generator, one for each layer and direction.

    checkpoint_every=k keeps for backward the states at about every k-th step, and computes what
    lies between again: the same gradients to the bit, with less memory and another forward.

    With float32 input, weights may be bfloat16 (arrays of the package ml_dtypes) on the CPU: half
    the size, for inference; what is computed is float32, with the weights' values exactly. On a GPU
    all arrays may be of one 16-bit dtype.

    ValueError for shapes that do not fit and numbers out of range, TypeError for other dtypes, and
    where a gradient is asked of a call with bfloat16 weights.

    >>> import numpy as np, fusednn.functional as F
    >>> out, h = F.rnn(np.ones((4, 1, 1)), None, [np.eye(1), np.eye(1)], nonlinearity="identity")
    >>> out[:, 0, 0]
    array([1., 2., 3., 4.])
    """
    options = ("rnn", nonlinearity, num_layers, bidirectional, batch_first)
    extra = None
    if dropout or recurrent_dropout or checkpoint_every is not None:
        rates = (dropout, recurrent_dropout)
        extra = _extra(options, rates, training, variational, checkpoint_every, input, weights)
    return _run(options, input, state, None, weights, lengths, extra)[:2]


def lstm(
    input: Any,
    state: Any,
    weights: Sequence[Any],
    num_layers: int = 1,
    *,
    dropout: float = 0.0,
    training: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Any = None,
    recurrent_dropout: float = 0.0,
    variational: bool = False,
    checkpoint_every: int | None = None,
) -> Any:
    """`lstm_cell` over whole sequences and a stack of layers -> (output, (h_n, c_n)).

    As `rnn`, but state is (h_0, c_0) or None. A fifth weight (third without biases) w_hr (P, H)
    projects h to P values, which the next step and layer then read (Sak, Senior and Beaufays, "Long
    short-term memory recurrent neural network architectures", Interspeech 2014).

    >>> import numpy as np, fusednn.functional as F
    >>> weights = [np.zeros((8, 3)), np.zeros((8, 2))]
    >>> out, (h, c) = F.lstm(np.ones((4, 5, 3)), None, weights)
    >>> out.shape, h.shape, c.shape
    ((4, 5, 2), (1, 5, 2), (1, 5, 2))
    """
    options = ("lstm", "tanh", num_layers, bidirectional, batch_first)
    h, c = _pair("lstm", state)
    extra = None
    if dropout or recurrent_dropout or checkpoint_every is not None:
        rates = (dropout, recurrent_dropout)
        extra = _extra(options, rates, training, variational, checkpoint_every, input, weights)
    out, h_n, c_n = _run(options, input, h, c, weights, lengths, extra)
    return out, (h_n, c_n)


def layer_norm_lstm(
    input: Any,
    state: Any,
    weights: Sequence[Any],
    num_layers: int = 1,
    *,
    eps: float = 1e-5,
    dropout: float = 0.0,
    training: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Any = None,
    recurrent_dropout: float = 0.0,
    variational: bool = False,
    checkpoint_every: int | None = None,
) -> Any:
    """An LSTM whose products and cell are layer-normalised -> (output, (h_n, c_n)).

    With LN(v) = (v - mean) / sqrt(variance + eps), over the 4 H values of a product and the H of c:
    i, f, g, o = gain_ih LN(w_ih x) + b_ih + gain_hh LN(w_hh h) + b_hh, c' = s(f) c + s(i) tanh(g),
    h' = s(o) tanh(gain_c LN(c') + bias_c). c goes on to the next step as it is.

    weights: for each layer and direction w_ih (4 H, I), w_hh (4 H, H), b_ih, b_hh (4 H,), gain_ih,
    gain_hh (4 H,), gain_c, bias_c (H,), or without the three biases in all. The rest as `lstm`'s.

    Ba, Kiros and Hinton, "Layer normalization", 2016, section 3.1 and the supplement.

    >>> import numpy as np, fusednn.functional as F
    >>> weights = [np.zeros((8, 3)), np.zeros((8, 2)), np.ones(8), np.ones(8), np.ones(2)]
    >>> out, (h, c) = F.layer_norm_lstm(np.ones((4, 5, 3)), None, weights)
    >>> out.shape, h.shape, c.shape
    ((4, 5, 2), (1, 5, 2), (1, 5, 2))
    """
    op = "layer_norm_lstm"
    if not 0 < eps < float("inf"):
        raise ValueError(f"{op}: eps={eps}, expected a number above 0")
    options = (op, "tanh", num_layers, bidirectional, batch_first)
    h, c = _pair(op, state)
    rates = (dropout, recurrent_dropout)
    extra = _extra(options, rates, training, variational, checkpoint_every, input, weights, eps)
    out, h_n, c_n = _run(options, input, h, c, weights, lengths, extra)
    return out, (h_n, c_n)


def gru(
    input: Any,
    state: Any,
    weights: Sequence[Any],
    num_layers: int = 1,
    *,
    dropout: float = 0.0,
    training: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Any = None,
    recurrent_dropout: float = 0.0,
    variational: bool = False,
    checkpoint_every: int | None = None,
) -> Any:
    """`gru_cell` over whole sequences and a stack of layers -> (output, h_n); as `rnn`.

    >>> import numpy as np, fusednn.functional as F
    >>> out, h = F.gru(np.ones((4, 5, 3)), None, [np.zeros((6, 3)), np.zeros((6, 2))])
    >>> out.shape, h.shape
    ((4, 5, 2), (1, 5, 2))
    """
    options = ("gru", "tanh", num_layers, bidirectional, batch_first)
    extra = None
    if dropout or recurrent_dropout or checkpoint_every is not None:
        rates = (dropout, recurrent_dropout)
        extra = _extra(options, rates, training, variational, checkpoint_every, input, weights)
    return _run(options, input, state, None, weights, lengths, extra)[:2]


def _extra(
    options: tuple[Any, ...],
    rates: tuple[float, float],
    training: bool,
    variational: bool,
    checkpoint_every: int | None,
    input: Any,
    weights: Sequence[Any],
    eps: float | None = None,
) -> tuple[Any, ...] | None:
    """What few calls need: the masks of dropout, 0 or 1 / (1 - p), and the checkpoints."""
    op, _, layers, bidirectional, batch_first = options
    for name, p in zip(("dropout", "recurrent_dropout"), rates, strict=True):
        if not 0 <= p <= 1:
            raise ValueError(f"{op}: {name}={p}, expected a probability in [0, 1]")
    x = raw(input)
    lead = list(np.shape(x)[:-1])
    between = recurrent = None
    # What has another shape is refused before anybody looks at a mask.
    if len(lead) in (1, 2) and len(weights) > 1 and training and any(rates):
        width, directions = np.shape(raw(weights[1]))[-1], 2 if bidirectional else 1
        batch = lead[1:] if len(lead) == 1 or not batch_first else lead[:1]
        if rates[0] and layers > 1:
            shape = (*(batch if variational else lead), directions * width)
            between = tuple([_mask(shape, rates[0], x) for _ in range(layers - 1)])
        if rates[1]:
            recurrent = _mask((layers * directions, *batch, width), rates[1], x)
    if between is recurrent is checkpoint_every is eps is None:
        return None
    return between, recurrent, checkpoint_every, eps


def _mask(shape: tuple[int, ...], p: float, like: Any) -> Any:
    scale = 1 / (1 - p) if p < 1 else 0.0
    kept = random.next_generator().random(shape, np.float32) >= p
    return beside(kept * like.dtype.type(scale), like)


# ---- all of them ---------------------------------------------------------------------------------


def _run(
    options: tuple[Any, ...],
    input: Any,
    h: Any,
    c: Any,
    weights: Sequence[Any],
    lengths: Any,
    extra: tuple[Any, ...] | None,
) -> tuple[Any, ...]:
    """(out, h_n) or (out, h_n, c_n); out is None for a single step."""
    if autocasting() is not None:
        input, h, c, *weights = narrowed(options[0], input, h, c, *weights)
        extra = extra and _narrowed_masks(options[0], extra)
    inputs = (input, h, c, *weights)
    lengths = raw(lengths)
    if lengths is not None and on_gpu(lengths):
        raise ValueError(
            f"{options[0]}: lengths is on a GPU, expected on the CPU, which walks over the steps"
        )
    for value in inputs:
        if isinstance(value, TensorBase):
            break
    else:
        out, h_n, c_n, _ = _core.recurrent_forward(
            options, input, h, c, weights, lengths, extra, False
        )
        return (out, h_n) if c_n is None else (out, h_n, c_n)
    tracked = grad_enabled() and any(map(needs, inputs))
    x, kept = raw(input), None
    # One or two steps read the weights where they lie.
    if type(weights) is LayerWeights and type(x) is np.ndarray and x.size > 2 * x.shape[-1]:
        kept = weights.packed.of(weights)
    out, h_n, c_n, saved = _core.recurrent_forward(
        options, x, raw(h), raw(c), [raw(w) for w in weights], lengths, extra, tracked, kept
    )
    results: tuple[Any, ...] = (h_n,) if c_n is None else (h_n, c_n)
    if out is not None:
        results = (out, *results)
    if tracked:
        # A user's lengths may change until backward; the other arrays are the tape's to keep.
        context = (options, None if lengths is None else np.array(lengths), extra, saved)
        results = record_outputs(results, _recurrent_backward, inputs, inputs, context)
    else:
        results = tuple([wrap(array) for array in results])
    return (None, *results) if out is None else results


def _narrowed_masks(op: str, extra: tuple[Any, ...]) -> tuple[Any, ...]:
    between, recurrent, *rest = extra
    (recurrent,) = narrowed(op, recurrent)
    return between and narrowed(op, *between), recurrent, *rest


def _recurrent_backward(node: Node, grad: Any) -> Gradients:
    input, h, c, *rest = node.saved
    *weights, options, lengths, extra, saved = rest
    is_step, is_lstm = options[0].endswith("_cell"), "lstm" in options[0]
    grads = (*([None] if is_step else []), *grad, *([] if is_lstm else [None]))
    wanted = tuple([edge is not None for edge in node.edges])
    return _core.recurrent_backward(
        options, input, h, c, weights, lengths, extra, saved, grads, wanted
    )


__all__ = ["gru", "gru_cell", "layer_norm_lstm", "lstm", "lstm_cell", "rnn", "rnn_cell"]
