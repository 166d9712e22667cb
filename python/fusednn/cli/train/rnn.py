"""`python -m fusednn train rnn`: next month's price from the months before."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import Refused, add_options, recipe_text

if TYPE_CHECKING:
    from ...data import Series
    from .task import Task

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

RECIPES: dict[str, dict[str, Any]] = {
    "stocks": {"epochs": 20, "batch_size": 32, "lr": 3e-3, "length": 24, "width": 16, "layers": 1},
}
_HELD_OUT = 0.2  # of the months of each company, its last ones

_DESCRIPTION = """\
Trains a plain recurrent network with Adam on the monthly prices of five companies (2000 to 2010,
from a file of the PyPI package vega-datasets): from each month's change, as a logarithm, it
predicts the next. The last fifth of the months is held out; the error is that of the forecast price
in percent, and stands beside that of the forecast that nothing changes, which is hard to beat.
--plot draws prediction against truth.

Exit status: 0 trained, 1 failed, 2 wrong arguments or missing data, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn train rnn --data stocks --plot stocks.png
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `train rnn`."""
    parser = subparsers.add_parser(
        "rnn",
        help="prices one month ahead, with a plain recurrent network",
        description=_DESCRIPTION,
        epilog=recipe_text(RECIPES) + "\n" + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, list(RECIPES), ("length", "width", "layers"))
    return parser


def prepare(config: dict[str, Any]) -> Task:
    """Data, network and optimiser of a run."""
    from ... import data, models, optim
    from ... import functional as F
    from .task import Task, placed

    companies = {name: _Company(series) for name, series in data.stocks().items()}
    known = np.concatenate([company.changes[: company.border] for company in companies.values()])
    scale = float(known.std())
    x, y = _windows([c.changes[: c.border] / scale for c in companies.values()], config)
    model = models.RNNForecaster(1, config["width"], config["layers"])
    held_out = sum(len(c.changes) - c.border for c in companies.values())
    still = _error([(c.prices[:-1], c) for c in companies.values()])

    def loss(batch: Any) -> Any:
        x, y = placed(model, *batch)
        return F.mse_loss(model(x)[0], y)

    return Task(
        title=(
            f"RNN on stocks: {len(x)} windows to train, {held_out} months to validate, where no "
            f"change at all is wrong by {still:.2f} %"
        ),
        model=model,
        optimizer=optim.Adam(model.parameters(), lr=config["lr"]),
        loader=data.DataLoader(
            data.ArrayDataset(x, y), config["batch_size"], shuffle=True, seed=config["seed"]
        ),
        loss=loss,
        validate=lambda: _validate(model, list(companies.values()), scale),
        metric="loss",
        higher_is_better=False,
        drawing=lambda axes: _draw(axes, model, companies, scale),
    )


class _Company:
    """Prices, and their changes as logarithms: changes[i] leads from prices[i] to prices[i + 1]."""

    def __init__(self, series: Series) -> None:
        self.time, self.prices = series.time, series.values
        self.changes = np.diff(np.log(series.values))
        self.border = int(len(self.changes) * (1 - _HELD_OUT))  # changes before it are learnt from


def _windows(parts: list[np.ndarray], config: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of the changes, and the same ones a month later, (N, length, 1) each."""
    size = config["length"] + 1
    found = [
        np.lib.stride_tricks.sliding_window_view(part, size) for part in parts if len(part) >= size
    ]
    if not found:
        longest = max(len(part) for part in parts)
        raise Refused(f"--length {config['length']}: expected 1 to {longest - 1} months")
    rows = np.concatenate(found)[: config["limit"], :, None]
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def _forecasts(model: Any, company: _Company, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The predicted change and price of every month from the third on, each from those before."""
    from ... import no_grad
    from .task import placed

    changes = company.changes.astype(np.float32) / np.float32(scale)
    with no_grad():
        (x,) = placed(model, changes[None, :-1, None])
        predicted = model(x)[0].cpu().numpy()[0, :, 0] * scale
    return predicted, company.prices[1:-1] * np.exp(predicted)


def _error(forecasts: list[tuple[np.ndarray, _Company]]) -> float:
    """Mean distance of forecast prices (the last ones of each company) from the held-out ones."""
    parts = []
    for prices, company in forecasts:
        count = len(company.changes) - company.border
        truth = company.prices[-count:]
        parts.append(np.abs(prices[-count:] - truth) / truth)
    return 100 * float(np.concatenate(parts).mean())


def _validate(model: Any, companies: list[_Company], scale: float) -> dict[str, float]:
    squares, prices = [], []
    for company in companies:
        changes, forecast = _forecasts(model, company, scale)
        count = len(company.changes) - company.border
        squares.append(((changes - company.changes[1:])[-count:] / scale) ** 2)
        prices.append((forecast, company))
    return {"loss": float(np.concatenate(squares).mean()), "error %": _error(prices)}


def _draw(axes: Any, model: Any, companies: dict[str, _Company], scale: float) -> None:
    """Prices as lines, forecasts as points of the same colour, one company above the other."""
    # Okabe and Ito's colours.
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
    for (name, company), colour in zip(companies.items(), colours, strict=True):
        time = company.time.astype("datetime64[D]")
        _, forecast = _forecasts(model, company, scale)
        axes.plot(time, company.prices, color=colour, linewidth=1.4, label=name)
        points = {"linestyle": "none", "marker": "o", "markersize": 2.5, "alpha": 0.7}
        axes.plot(time[2:], forecast, color=colour, **points)
        start = time[company.border + 1]
        axes.axvline(start, color="#666666", linewidth=0.6, linestyle=":")
    axes.set_yscale("log")
    axes.set_ylabel("price (dollars)")
    axes.set_title(
        "prices (lines) and forecasts a month ahead (points); held out right of the dotted lines",
        fontsize="medium",
    )
    axes.legend(frameon=False, ncols=len(companies), loc="upper left")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
