"""Where the polynomials of csrc/cpu/vmath.h come from: Remez' exchange in 60 decimal digits.

    python bench/lab/vmath_coefficients.py

prints each coefficient as a C++ hexadecimal literal, and the largest relative error that the
polynomial makes with rounded coefficients, in units of the last place of the result. Needs nothing
but Python. Three functions are fitted:

exp  e^r = 1 + r + r^2 q(r) on |r| <= ln 2 / 2, relative to e^r
log  2 atanh(s) = 2 s + s z p(z), z = s^2, on m = (1 + s) / (1 - s) in [sqrt 1/2, sqrt 2), relative
     to 2 s; the interval of z is [0, ((sqrt 2 - 1) / (sqrt 2 + 1))^2]
tail the normal distribution's P(Z > x) e^(x^2/2) (x + k) on 0 <= x <= top as a polynomial in
     t = (x - k) / (x + k), relative to itself (csrc/cpu/activation/normal.h)

All are weighted least maximum problems: find the polynomial p that makes the largest
|weight (p - f)| smallest. Its error touches the maximum with alternating signs at degree + 2 points
(Chebyshev); the exchange solves for that maximum on a guess of the points and moves them to where
the error really peaks, until nothing moves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal, getcontext

getcontext().prec = 60
D = Decimal
Function = Callable[[Decimal], Decimal]
GRID = 2000


def solve(rows: list[list[Decimal]]) -> list[Decimal]:
    """Gauss' elimination with pivots; each row ends with its right-hand side."""
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(n):
            if r != i and rows[r][i]:
                factor = rows[r][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


def value(coefficients: list[Decimal], x: Decimal) -> Decimal:
    total = D(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def remez(f: Function, weight: Function, low: Decimal, high: Decimal, degree: int) -> list[Decimal]:
    # Half steps: the middle of the interval, where exp's weight is 0, is no grid point.
    grid = [low + (high - low) * (2 * i + 1) / (2 * GRID) for i in range(GRID)]
    known = [(x, f(x), weight(x)) for x in grid]
    points = [known[(2 * i + 1) * GRID // (2 * (degree + 2))] for i in range(degree + 2)]
    for _ in range(30):
        rows = [
            [*(x**k for k in range(degree + 1)), (-1) ** i / w, y]
            for i, (x, y, w) in enumerate(points)
        ]
        *coefficients, _level = solve(rows)
        errors = [w * (value(coefficients, x) - y) for x, y, w in known]
        # The peak of every stretch of one sign.
        peaks: list[int] = []
        for i, e in enumerate(errors):
            if not peaks or (errors[peaks[-1]] > 0) != (e > 0):
                peaks.append(i)
            elif abs(e) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        while len(peaks) > degree + 2:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        moved = [known[i] for i in peaks]
        if moved == points:
            break
        points = moved
    return coefficients


def rounded(c: Decimal, code: str) -> float:
    number: float = struct.unpack(code, struct.pack(code, float(c)))[0]
    return number


def report(
    name: str, f: Function, weight: Function, low: Decimal, high: Decimal, degree: int, code: str
) -> None:
    numbers = [rounded(c, code) for c in remez(f, weight, low, high, degree)]
    exact = [D(n) for n in numbers]
    worst = max(
        abs(weight(x) * (value(exact, x) - f(x)))
        for x in (low + (high - low) * (2 * i + 1) / 6000 for i in range(3000))
    )
    ulp = D(2) ** (-23 if code == "f" else -52)
    suffix = "f" if code == "f" else ""
    print(f"{name}, {'float' if code == 'f' else 'double'}: error {float(worst / ulp):.4f} ulp")
    for n in numbers:
        print(f"    {n.hex()}{suffix},  // {n:.17g}")


def main() -> None:
    half = D(2).ln() / 2
    root = D(2).sqrt()
    edge = ((root - 1) / (root + 1)) ** 2

    def exp_tail(r: Decimal) -> Decimal:
        return (r.exp() - 1 - r) / (r * r)

    def exp_weight(r: Decimal) -> Decimal:
        return r * r / r.exp()

    def log_tail(z: Decimal) -> Decimal:
        s = z.sqrt()
        return (((1 + s) / (1 - s)).ln() - 2 * s) / (s * z)

    def log_weight(z: Decimal) -> Decimal:
        return z / 2

    pi = D("3.14159265358979323846264338327950288419716939937510582097494")

    def mills(x: Decimal) -> Decimal:
        """P(Z > x) e^(x^2/2): a series near 0, the continued fraction of Laplace beyond."""
        if x > 9:
            fraction = D(0)
            for k in range(400, 0, -1):
                fraction = k / (x + fraction)
            return 1 / ((x + fraction) * (2 * pi).sqrt())
        term = total = x
        n = 1
        while term > total * D("1e-58"):
            term = term * x * x / (2 * n + 1)
            total += term
            n += 1
        return (x * x / 2).exp() / 2 - total / (2 * pi).sqrt()

    for code, shift, top, degree in (("f", D(3), D("14.5"), 8), ("d", D(4), D(39), 22)):

        def tail(t: Decimal, k: Decimal = shift) -> Decimal:
            x = k * (1 + t) / (1 - t)
            return mills(x) * (x + k)

        def tail_weight(t: Decimal, k: Decimal = shift) -> Decimal:
            return 1 / tail(t, k)

        report("tail", tail, tail_weight, D(-1), (top - shift) / (top + shift), degree, code)

    for code, exp_degree, log_degree in (("f", 4, 2), ("d", 9, 6)):
        report("exp", exp_tail, exp_weight, -half, half, exp_degree, code)
        report("log", log_tail, log_weight, D(0), edge, log_degree, code)


if __name__ == "__main__":
    main()
