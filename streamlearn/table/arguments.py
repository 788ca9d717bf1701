"""Arguments: checks of arrays and numbers, with errors that name the argument. It copies and converts nothing."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["INT64_MAX", "INT64_MIN", "THREADS_MAX", "UINT64_MAX", "flat", "instance", "number_of", "whole"]

INT64_MIN, INT64_MAX, UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
THREADS_MAX = 128


def flat(name: str, array: npt.NDArray[Any], dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Return an array's memory as one dimension, as the native core takes it. In `shape` None stands for any length.

    Raises:
        TypeError: It is not an array of that type in the machine's byte order, or is not contiguous. A copy would lose
            what is written into it, and would cost more than the call.
        ValueError: It has another shape.
    """
    wanted = np.dtype(dtype)
    if not isinstance(array, np.ndarray) or array.dtype != wanted:
        got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
        message = f"{name}: expected a C-contiguous {wanted} array, got {got}"
        raise TypeError(message)
    have = array.shape
    if have != shape and (len(have) != len(shape) or any(map(_differs, shape, have))):
        expected = ", ".join("any" if length is None else str(length) for length in shape)
        message = f"{name}: expected the shape ({expected}{',' * (len(shape) == 1)}), got {have}"
        raise ValueError(message)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        state = "misaligned" if flags.c_contiguous else "non-contiguous"
        message = f"{name}: expected a C-contiguous {wanted} array, got a {state} array of shape {have}"
        raise TypeError(message)
    return array.reshape(-1)


def _differs(want: int | None, have: int) -> bool:
    return want is not None and want != have


def whole(name: str, value: int, least: int, most: int) -> int:
    """Return a whole number; another type raises a TypeError, and a number out of bounds a ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        message = f"{name}: expected a whole number, got {value!r}"
        raise TypeError(message) from None
    if not least <= number <= most:
        message = f"{name}: expected {least} to {most}, got {number}"
        raise ValueError(message)
    return number


def instance(name: str, value: object, kind: type, what: str) -> None:
    """Raise a TypeError unless the value is of a kind, which `what` states in words."""
    if not isinstance(value, kind):
        message = f"{name}: expected {what}, got {type(value).__name__}"
        raise TypeError(message)


def number_of(name: str, value: object) -> float:
    """Return a number; another type raises a TypeError, and a negative, infinite or NaN number a ValueError."""
    if not isinstance(value, numbers.Real):
        message = f"{name}: expected a number, got {value!r}"
        raise TypeError(message)
    number = float(value)
    if not 0.0 <= number < math.inf:
        message = f"{name}: expected a finite number of at least 0, got {value}"
        raise ValueError(message)
    return number
