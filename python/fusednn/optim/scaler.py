"""Scaling of losses, so that gradients of float16 products do not vanish."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _core
from .._tensor.autocast import cast_array
from .._tensor.device import is_half
from .._tensor.tape import TensorBase
from .optimizer import Optimizer, _is_number, alike

_STATE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class GradScaler:
    """Multiplies losses by a large number and gradients by its inverse; finds the number itself.

    float16 ends at 6e-8: gradients below it would be 0. The loss is scaled before backward, the
    gradients back before the update. Where a gradient became inf or NaN, the update is skipped and
    the scale shrinks by backoff_factor; after growth_interval updates in a row without that, it
    grows by growth_factor. bfloat16 has float32's range and needs none of this.

    The host looks at the result once per step, in `step`. enabled=False makes all of it do nothing.

    Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> optimizer, scaler = fn.optim.SGD([w], lr=0.5), fn.optim.GradScaler()
    >>> scaler.scale(w.sum()).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> w
    tensor([0.5000], requires_grad=True)
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._enabled = bool(enabled)
        self._set(init_scale, growth_factor, backoff_factor, growth_interval, 0)
        # Of each optimizer since the last update: are its gradients finite (an array on the device
        # until `step` has looked), and was it stepped?
        self._finite: dict[int, Any] = {}
        self._stepped: set[int] = set()

    def _set(self, scale: Any, growth: Any, backoff: Any, interval: Any, tracker: Any) -> None:
        for name, value in (("init_scale", scale), ("growth_factor", growth)):
            if not _is_number(value) or not 0 < value < math.inf:
                raise ValueError(f"GradScaler: {name}={value}, expected a finite number > 0")
        if growth <= 1:
            raise ValueError(f"GradScaler: growth_factor={growth}, expected more than 1")
        if not _is_number(backoff) or not 0 < backoff < 1:
            raise ValueError(f"GradScaler: backoff_factor={backoff}, expected between 0 and 1")
        counts = (("growth_interval", interval, 1), ("_growth_tracker", tracker, 0))
        for name, value, least in counts:
            if not hasattr(value, "__index__") or value < least:
                raise ValueError(f"GradScaler: {name}={value}, expected an integer >= {least}")
        self._scale, self._tracker = float(scale), int(tracker)
        self._growth, self._backoff, self._interval = float(growth), float(backoff), int(interval)

    def is_enabled(self) -> bool:
        """Does it do anything?"""
        return self._enabled

    def get_scale(self) -> float:
        """What losses are multiplied by now."""
        return self._scale if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list or tuple of losses, times the scale. 16-bit losses become float32."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(one) for one in outputs)
        if not isinstance(outputs, TensorBase):
            raise TypeError(f"GradScaler: scale expects a Tensor, got {type(outputs).__name__}")
        loss: Any = outputs
        return (loss.float() if is_half(outputs._data.dtype) else loss) * self._scale

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients of the optimizer's parameters by the scale, in place; to be called
        before they are clipped. `step` does it otherwise. RuntimeError for a second time."""
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise RuntimeError("GradScaler: unscale_ is called after step; call update first")
        if id(optimizer) in self._finite:
            raise RuntimeError(
                "GradScaler: unscale_ was called for this optimizer since the last update"
            )
        self._finite[id(optimizer)] = self._unscale(optimizer)

    def _unscale(self, optimizer: Optimizer) -> Any:
        inverse, parts = 1.0 / self._scale, []
        grads: dict[int, Any] = {}  # each once, also if parameters share one
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if (grad := parameter._grad) is not None and id(grad) not in grads:
                    grads[id(grad)] = grad._data
                    grad._memory[0] += 1
        whole = []
        for data in grads.values():
            if not is_half(data.dtype) and data.flags.c_contiguous and data.dtype.isnative:
                whole.append(data)
                continue
            if is_half(data.dtype):
                # The inverse may be too small for 16 bits, and a product with it too coarse.
                data[...] = cast_array(data, np.dtype(np.float32)) * inverse
            else:
                np.multiply(data, data.dtype.type(inverse), out=data)
            parts.append(np.isfinite(data).all())
        for some in alike(whole, lambda array: array):
            _core.scale_arrays(some, inverse)
            # In float64 no square of what is finite is infinite; of float64's, smaller by this.
            small = 1.0 if some[0].dtype.char == "f" else 2.0**-560
            parts.append(np.isfinite(_core.sum_of_squares(some, small)))
        return functools.reduce(np.logical_and, parts) if parts else None

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(...) if all gradients are finite; its result, or None if it was skipped.
        RuntimeError for a second time before `update`."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise RuntimeError("GradScaler: step does not take a closure")
        if id(optimizer) in self._stepped:
            raise RuntimeError("GradScaler: step was called for this optimizer; call update first")
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        found = self._finite[id(optimizer)]
        if found is None:
            raise RuntimeError("GradScaler: no parameter of the optimizer has a gradient")
        self._stepped.add(id(optimizer))
        finite = self._finite[id(optimizer)] = bool(found)  # where the host waits
        return optimizer.step() if finite else None

    def update(self, new_scale: float | None = None) -> None:
        """Once at the end of every step: shrinks or grows the scale, or sets it to new_scale."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._set(new_scale, self._growth, self._backoff, self._interval, self._tracker)
        else:
            if not self._finite:
                raise RuntimeError("GradScaler: update is called before unscale_ or step")
            if all(bool(one) for one in self._finite.values() if one is not None):
                self._tracker += 1
                if self._tracker == self._interval:
                    grown = self._scale * self._growth
                    self._scale = grown if grown <= np.finfo(np.float32).max else self._scale
                    self._tracker = 0
            else:
                self._scale *= self._backoff
                self._tracker = 0
        self._finite.clear()
        self._stepped.clear()

    def state_dict(self) -> dict[str, Any]:
        """The scale and what changes it; {} if not enabled."""
        if not self._enabled:
            return {}
        values = (self._scale, self._growth, self._backoff, self._interval, self._tracker)
        return dict(zip(_STATE, values, strict=True))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; ValueError for anything else."""
        if not self._enabled:
            return
        if set(state_dict) != set(_STATE):
            raise ValueError(
                f"GradScaler: the state has {sorted(state_dict)}, expected {sorted(_STATE)}"
            )
        self._set(*(state_dict[key] for key in _STATE))


__all__ = ["GradScaler"]
