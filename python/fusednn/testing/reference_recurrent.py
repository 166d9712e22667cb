"""Plain twins of the recurrent layers: NumPy, one step at a time, in the precision of the arrays.

They follow the definitions word for word: every sequence steps as long as it is, and backward walks
the same steps from the last to the first. In float64 they are the truth for float32 (in longdouble
for float64); in the arrays' own precision they are the naive version that kernels are held against.
Everything is time-major: input (T, N, I), lengths (N,).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = list[Array]


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), without overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


def normalised(v: Array, eps: float) -> tuple[Array, Array]:
    """(v - mean) / sqrt(variance + eps) of each row, and what it was divided by."""
    d = v - v.mean(1, keepdims=True)
    spread = np.sqrt((d * d).mean(1, keepdims=True) + v.dtype.type(eps))
    return d / spread, spread


def through_norm(d: Array, norm: tuple[Array, Array]) -> Array:
    """The gradient of what `normalised` was given, from that of its result."""
    y, spread = norm
    mean, mean_y = d.mean(1, keepdims=True), (d * y).mean(1, keepdims=True)
    return np.asarray((d - mean - y * mean_y) / spread)


@dataclass
class Layer:
    """One direction of one layer: forward, then backward over what it kept.

    weights: w_ih, w_hh, and in all or none b_ih, b_hh; then w_hr if the layer projects, or of the
    normalised LSTM gain_ih, gain_hh, gain_c and, if there are biases, bias_c.
    """

    cell: str  # "tanh", "relu", "identity", "lstm", "gru" or "norm_lstm"
    weights: Weights
    reverse: bool = False
    mask: Array | None = None  # (N, O): what multiplies h on its way into w_hh
    eps: float = 1e-5
    steps: list[dict[str, Any]] = field(default_factory=list)

    def _named(self) -> dict[str, Array]:
        w = self.weights
        names = ["w_ih", "w_hh"]
        if self.cell == "norm_lstm":
            names += ["b_ih", "b_hh"] * (len(w) == 8) + ["gain_ih", "gain_hh", "gain_c"]
            names += ["bias_c"] * (len(w) == 8)
        else:
            names += ["b_ih", "b_hh"] * (len(w) >= 4) + ["w_hr"] * (len(w) % 2)
        return dict(zip(names, w, strict=True))

    def forward(self, x: Array, h: Array, c: Array, lengths: Array) -> tuple[Array, Array, Array]:
        """(T, N, I), (N, O), (N, H) -> out (T, N, O) and the states at each sequence's end."""
        w = self._named()
        zeros = np.zeros(len(w["w_ih"]), x.dtype)
        out = np.zeros((*x.shape[:2], h.shape[1]), x.dtype)
        times = range(len(x))
        for t in reversed(times) if self.reverse else times:
            active = lengths > t
            xs, hs, cs = x[t, active], h[active], c[active]
            a = xs @ w["w_ih"].T + w.get("b_ih", zeros)
            seen = hs if self.mask is None else hs * self.mask[active]
            u = seen @ w["w_hh"].T + w.get("b_hh", zeros)
            step = {"t": t, "active": active, "x": xs, "h": hs, "seen": seen, "c": cs}
            if self.cell == "norm_lstm":
                a, u = xs @ w["w_ih"].T, seen @ w["w_hh"].T
                norms = [normalised(v, self.eps) for v in (a, u)]
                z = norms[0][0] * w["gain_ih"] + norms[1][0] * w["gain_hh"]
                i, f, g, o = np.split(z + w.get("b_ih", zeros) + w.get("b_hh", zeros), 4, axis=1)
                i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
                cs = f * cs + i * g
                norms.append(normalised(cs, self.eps))
                squashed = np.tanh(norms[2][0] * w["gain_c"] + w.get("bias_c", 0))
                hs = o * squashed
                step |= {"gates": (i, f, g, o), "norms": norms, "squashed": squashed}
            elif self.cell == "lstm":
                i, f, g, o = np.split(a + u, 4, axis=1)
                i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
                cs = f * cs + i * g
                hs = o * np.tanh(cs)
                step |= {"gates": (i, f, g, o), "c_new": cs, "inner": hs}
                if "w_hr" in w:
                    hs = hs @ w["w_hr"].T
            elif self.cell == "gru":
                (a_r, a_z, a_n), (u_r, u_z, u_n) = (np.split(v, 3, axis=1) for v in (a, u))
                r, z = sigmoid(a_r + u_r), sigmoid(a_z + u_z)
                n = np.tanh(a_n + r * u_n)
                hs = (1 - z) * n + z * hs
                step |= {"gates": (r, z, n, u_n)}
            else:
                hs = a + u
                if self.cell == "tanh":
                    hs = np.tanh(hs)
                if self.cell == "relu":
                    hs = np.maximum(hs, 0)
                step |= {"h_new": hs}
            self.steps.append(step)
            h, c = h.copy(), c.copy()
            h[active], c[active] = hs, cs
            out[t, active] = hs
        return out, h, c

    def backward(self, d_out: Array, d_h: Array, d_c: Array, inputs: int) -> tuple[Any, ...]:
        """d_x, d_h0, d_c0 and the weights' gradients."""
        w = self._named()
        grads = {name: np.zeros_like(value) for name, value in w.items()}
        d_x = np.zeros((*d_out.shape[:2], inputs), d_out.dtype)
        d_h, d_c = d_h.copy(), d_c.copy()
        for step in reversed(self.steps):
            t, active = step["t"], step["active"]
            dh, dc = d_h[active] + d_out[t, active], d_c[active]
            direct: Any = 0
            d_pre: Any = None
            if self.cell == "norm_lstm":
                i, f, g, o = step["gates"]
                of_a, of_u, of_c = step["norms"]
                squashed = step["squashed"]
                d_y = dh * o * (1 - squashed**2)
                dc = dc + through_norm(d_y * w["gain_c"], of_c)
                d_pre = np.concatenate(
                    [
                        dc * g * i * (1 - i),
                        dc * step["c"] * f * (1 - f),
                        dc * i * (1 - g**2),
                        dh * squashed * o * (1 - o),
                    ],
                    axis=1,
                )
                grads["gain_c"] += (d_y * of_c[0]).sum(0)
                grads["gain_ih"] += (d_pre * of_a[0]).sum(0)
                grads["gain_hh"] += (d_pre * of_u[0]).sum(0)
                if "bias_c" in w:
                    grads["bias_c"] += d_y.sum(0)
                d_a, d_u = (
                    through_norm(d_pre * w[gain], of)
                    for gain, of in (("gain_ih", of_a), ("gain_hh", of_u))
                )
                dc = dc * f
            elif self.cell == "lstm":
                if "w_hr" in w:
                    grads["w_hr"] += dh.T @ step["inner"]
                    dh = dh @ w["w_hr"]
                i, f, g, o = step["gates"]
                squashed = np.tanh(step["c_new"])
                dc = dc + dh * o * (1 - squashed**2)
                d_a = np.concatenate(
                    [
                        dc * g * i * (1 - i),
                        dc * step["c"] * f * (1 - f),
                        dc * i * (1 - g**2),
                        dh * squashed * o * (1 - o),
                    ],
                    axis=1,
                )
                d_u, dc = d_a, dc * f
            elif self.cell == "gru":
                r, z, n, u_n = step["gates"]
                dn = dh * (1 - z) * (1 - n**2)
                d_r, d_z = dn * u_n * r * (1 - r), dh * (step["h"] - n) * z * (1 - z)
                d_a = np.concatenate([d_r, d_z, dn], axis=1)
                d_u = np.concatenate([d_r, d_z, dn * r], axis=1)
                direct = dh * z
            else:
                slope = {
                    "tanh": 1 - step["h_new"] ** 2,
                    "relu": (step["h_new"] > 0).astype(dh.dtype),
                }.get(self.cell, np.ones_like(dh))
                d_a = d_u = dh * slope
            grads["w_ih"] += d_a.T @ step["x"]
            grads["w_hh"] += d_u.T @ step["seen"]
            if "b_ih" in w:
                grads["b_ih"] += (d_a if d_pre is None else d_pre).sum(0)
                grads["b_hh"] += (d_u if d_pre is None else d_pre).sum(0)
            d_x[t, active] = d_a @ w["w_ih"]
            through = d_u @ w["w_hh"]
            d_h[active] = direct + (through if self.mask is None else through * self.mask[active])
            d_c[active] = dc
        return d_x, d_h, d_c, list(grads.values())


@dataclass
class Stack:
    """Layers on top of each other; weights flat, as `functional.lstm` takes them."""

    cell: str
    weights: Weights
    layers: int = 1
    bidirectional: bool = False
    mask: Array | None = None  # (layers * D, N, O), of recurrent dropout
    between: list[Array] = field(default_factory=list)  # what multiplies outputs between layers
    parts: list[list[Layer]] = field(default_factory=list)

    def forward(self, x: Array, h0: Array, c0: Array, lengths: Array) -> tuple[Array, Array, Array]:
        """(T, N, I), (layers * D, N, O), (layers * D, N, H) -> out, h_n, c_n."""
        directions = 2 if self.bidirectional else 1
        count = len(self.weights) // (self.layers * directions)
        h_n, c_n = [], []
        for layer in range(self.layers):
            outs = []
            self.parts.append([])
            for direction in range(directions):
                index = layer * directions + direction
                weights = self.weights[index * count : (index + 1) * count]
                mask = None if self.mask is None else self.mask[index]
                part = Layer(self.cell, weights, direction == 1, mask)
                out, h, c = part.forward(x, h0[index], c0[index], lengths)
                self.parts[-1].append(part)
                outs.append(out)
                h_n.append(h)
                c_n.append(c)
            x = np.concatenate(outs, axis=2)
            if self.between and layer + 1 < self.layers:
                x = x * self.between[layer]
        return x, np.stack(h_n), np.stack(c_n)

    def backward(self, d_out: Array, d_h_n: Array, d_c_n: Array) -> tuple[Any, ...]:
        """d_x, d_h0, d_c0 and the flat weights' gradients."""
        d_h0, d_c0 = np.zeros_like(d_h_n), np.zeros_like(d_c_n)
        weights: Weights = []
        index = len(d_h_n)
        for parts in reversed(self.parts):
            index -= len(parts)
            inputs = parts[0].weights[0].shape[1]
            d_x = np.zeros((*d_out.shape[:2], inputs), d_out.dtype)
            here: Weights = []
            for i, (part, grad) in enumerate(
                zip(parts, np.split(d_out, len(parts), axis=2), strict=True)
            ):
                at = index + i
                dx, d_h0[at], d_c0[at], w = part.backward(grad, d_h_n[at], d_c_n[at], inputs)
                d_x += dx
                here += w
            weights = here + weights
            d_out = d_x * self.between[index // len(parts) - 1] if self.between and index else d_x
        return d_out, d_h0, d_c0, weights
