"""Arguments of a call: arrays and numbers, checked and named when they do not fit. It copies and converts nothing."""

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
    """The same memory as one dimension, which is what the native core takes.

    Args:
        name: What errors call it.
        array: Anything.
        dtype: What its numbers must be, in the machine's byte order.
        shape: What its shape must be; None stands for any length.

    Raises:
        TypeError: It is no array of that type, or does not lie in memory end to end: what is written into a copy
            would be lost, and what is read from one would cost more than the call.
        ValueError: Its shape is another.
    """
    wanted = np.dtype(dtype)
    if not isinstance(array, np.ndarray) or array.dtype != wanted:
        got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
        message = f"{name}: expected a C-contiguous {wanted} array, got {got}"
        raise TypeError(message)
    if len(array.shape) != len(shape) or any(
        want not in (None, have) for want, have in zip(shape, array.shape, strict=True)
    ):
        expected = ", ".join("any" if one is None else str(one) for one in shape)
        message = f"{name}: expected the shape ({expected}{',' * (len(shape) == 1)}), got {array.shape}"
        raise ValueError(message)
    if not (array.flags.c_contiguous and array.flags.aligned):
        state = "misaligned" if array.flags.c_contiguous else "non-contiguous"
        message = f"{name}: expected a C-contiguous {wanted} array, got a {state} array of shape {array.shape}"
        raise TypeError(message)
    return array.reshape(-1)


def whole(name: str, value: int, least: int, most: int) -> int:
    """A whole number within its bounds.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is outside its bounds.
    """
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
    """Refuse what is of another kind.

    Args:
        name: What errors call it.
        value: Anything.
        kind: What it must be.
        what: That, in words.

    Raises:
        TypeError: It is of another kind.
    """
    if not isinstance(value, kind):
        message = f"{name}: expected {what}, got {type(value).__name__}"
        raise TypeError(message)


def number_of(name: str, value: object) -> float:
    """A finite number of at least 0.

    Raises:
        TypeError: It is no number.
        ValueError: It is less, infinite, or NaN.
    """
    if not isinstance(value, numbers.Real):
        message = f"{name}: expected a number, got {value!r}"
        raise TypeError(message)
    number = float(value)
    if not 0.0 <= number < math.inf:
        message = f"{name}: expected a finite number of at least 0, got {value}"
        raise ValueError(message)
    return number
