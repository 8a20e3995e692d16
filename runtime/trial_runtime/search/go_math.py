"""Logarithm, exponential and power as Go computes them on amd64.

Determined's master is written in Go, whose ``math`` package differs from C's in the last places: ``log`` values of a
search come from its ``Pow``, and the number of rungs from a quotient of two of its logarithms. Each function here takes
the same steps in the same order; ``exp`` with fused multiply-adds, as Go does on each CPU that has them.
"""

from __future__ import annotations

import math
from fractions import Fraction

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
# The polynomial of log((1 + s) / (1 - s)) on [0, 0.1716], from FreeBSD's e_log.c.
_LOG_EVEN = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
_LOG_ODD = (6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01, 1.479819860511658591e-01)

_LOG2_E = 1.4426950408889634073599246810018920
_LN2_UPPER = 0.69314718055966295651160180568695068359375
_LN2_REST = 0.28235290563031577122588448175013436025525412068e-12
_TAYLOR = [1 / math.factorial(power) for power in range(8, 1, -1)]


def log(x: float) -> float:
    """Return the natural logarithm of a finite ``x`` > 0."""
    fraction, exponent = math.frexp(x)
    if fraction < math.sqrt(2) / 2:
        fraction, exponent = fraction * 2, exponent - 1
    f, k = fraction - 1, float(exponent)
    s = f / (2 + f)
    s2 = s * s
    s4 = s2 * s2
    odd = s2 * (_LOG_ODD[0] + s4 * (_LOG_ODD[1] + s4 * (_LOG_ODD[2] + s4 * _LOG_ODD[3])))
    even = s4 * (_LOG_EVEN[0] + s4 * (_LOG_EVEN[1] + s4 * _LOG_EVEN[2]))
    half_square = 0.5 * f * f
    return k * _LN2_HIGH - ((half_square - (s * (half_square + (odd + even)) + k * _LN2_LOW)) - f)


def exp(x: float) -> float:
    """Return e to the power of ``x``, |x| < 700."""
    n = float(round(x * _LOG2_E))  # half to even, as CVTSD2SL rounds
    x = _fma(-n, _LN2_REST, _fma(-n, _LN2_UPPER, x)) * 0.0625
    total = _TAYLOR[0]
    for coefficient in (*_TAYLOR[1:], 1.0):
        total = _fma(total, x, coefficient)
    x *= total
    for _ in range(3):  # exp(2x) - 1 of exp(x) - 1
        x *= x + 2
    return math.ldexp(_fma(x, x + 2, 1.0), int(n))


def pow(x: float, y: float) -> float:  # noqa: A001  - the function of this name in Go
    """Return ``x`` to the power of ``y``, ``x`` > 0, both finite."""
    if y == 0 or x == 1:
        return 1.0
    if y in (0.5, -0.5):
        return math.sqrt(x) if y > 0 else 1 / math.sqrt(x)
    fraction, whole = math.modf(abs(y))
    if fraction > 0.5:
        fraction, whole = fraction - 1, whole + 1
    result = exp(fraction * log(x)) if fraction else 1.0
    exponent = 0
    mantissa, mantissa_exponent = math.frexp(x)
    power = int(whole)
    while power:
        if abs(mantissa_exponent) > 1 << 12:  # over- or underflow, whatever follows
            exponent += mantissa_exponent
            break
        if power & 1:
            result *= mantissa
            exponent += mantissa_exponent
        mantissa *= mantissa
        mantissa_exponent *= 2
        if mantissa < 0.5:
            mantissa, mantissa_exponent = mantissa * 2, mantissa_exponent - 1
        power >>= 1
    if y < 0:
        result, exponent = 1 / result, -exponent
    return _ldexp(result, exponent)


def _fma(a: float, b: float, c: float) -> float:
    """Return ``a * b + c``, rounded once (math.fma is in Python 3.13)."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def _ldexp(fraction: float, exponent: int) -> float:
    try:
        return math.ldexp(fraction, exponent)
    except OverflowError:
        return math.inf
