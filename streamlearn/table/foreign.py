"""Foreign arrays: converts arrays of other systems, or refuses them.

A number is converted if it stays the same or becomes the nearest float32; anything else is refused with the name of
the array. This module does not know which table the arrays are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamlearn.errors import BadRecord

__all__ = ["converted", "npz_arrays", "row_lists", "values"]

Array = npt.NDArray[Any]

_WHOLE: dict[str, type[np.unsignedinteger[Any]]] = {
    "keys": np.uint64, "gone": np.uint64, "ticks": np.uint32, "counts": np.uint8
}  # fmt: skip
_SIGNED = "take signed keys of another system as `{0}.view(numpy.uint64)`"
# Advice for whole numbers that are out of range.
_ADVICE = {
    "keys": _SIGNED.format("keys"),
    "gone": _SIGNED.format("gone"),
    "ticks": f"ticks wrap around: give `ticks % {1 << 24}`",
    "counts": "counts saturate at 255: give `numpy.clip(counts, 0, 255)`",
}
_ROWS = {"<f4": np.float32, "<f2": np.float16, "<i1": np.int8, "<f8": np.float32}


def npz_arrays(file: Path | BinaryIO) -> dict[str, Array]:
    """Read all arrays of an `.npz` file.

    Raises:
        ValueError: A member is not an array. Other bytes raise many other errors.
    """
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # NumPy returns the bytes of other members
            message = f"{name} is not an array"
            raise ValueError(message)
    return arrays


def converted(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Convert arrays by field name, `keys` and `rows` among them, to the types of `Changes`.

    Whole numbers of any type become those of the field if none is negative or too large. Rows stay float16, float32 or
    int8 in the machine's byte order; float64 is rounded to float32. Scales and state become float32.

    Raises:
        BadRecord: A shape or a number does not fit.
    """
    shape = arrays["keys"].shape
    result = {}
    for name, array in arrays.items():
        is_matrix, is_free = name in ("rows", "state"), name in ("keys", "gone")
        if array.ndim != 1 + is_matrix or not (is_free or array.shape[:1] == shape):
            message = f"{name} have the shape {array.shape}, but keys have {shape}"
            raise BadRecord(message, help="keys have the shape (n,), rows and state (n, width), and all others (n,)")
        result[name] = _whole(name, array) if name in _WHOLE else _floats(name, array)
    _check_together(result)
    return result


def _check_together(arrays: Mapping[str, Array]) -> None:
    if ("scales" in arrays) != (arrays["rows"].dtype == np.int8):
        message = f"rows are {arrays['rows'].dtype}, but scales {'are' if 'scales' in arrays else 'are not'} given"
        raise BadRecord(message, help="only int8 rows have scales, one for each row")
    if ("ticks" in arrays) != ("counts" in arrays):
        message = f"{'ticks' if 'ticks' in arrays else 'counts'} are given alone"
        raise BadRecord(message, help="give ticks and counts, or neither")


def _whole(name: str, array: Array) -> Array:
    wanted = np.dtype(_WHOLE[name])
    if array.dtype.kind not in "iu":
        message = f"{name} are {array.dtype}"
        raise BadRecord(message, help="give whole numbers")
    if array.size and (int(array.min()) < 0 or int(array.max()) > np.iinfo(wanted).max):
        message = f"{name} go from {int(array.min())} to {int(array.max())}, beyond the range of {wanted}"
        raise BadRecord(message, help=_ADVICE[name])
    return np.ascontiguousarray(array, wanted)


def _floats(name: str, array: Array) -> Array:
    little = array.dtype.newbyteorder("<").str if array.dtype.byteorder == ">" else array.dtype.str.replace("|", "<")
    wanted = _ROWS.get(little)
    if wanted is None or (name != "rows" and wanted is np.int8):
        message = f"{name} are {array.dtype}"
        raise BadRecord(message, help="give float32")
    wanted = wanted if name == "rows" else np.float32
    with np.errstate(over="ignore"):
        floats: Array = np.ascontiguousarray(array, wanted)
    if wanted is np.float32 and bool(np.any(np.isinf(floats) & np.isfinite(array))):
        message = f"{name} have numbers beyond {np.finfo(np.float32).max}"
        raise BadRecord(message, help="float32 cannot hold them")
    return floats


def values(name: str, column: pa.Array | pa.ChunkedArray) -> Array:
    """Return the numbers of an Arrow column.

    Raises:
        BadRecord: It has nulls, or does not hold numbers.
    """
    if column.null_count:
        message = f"column {name!r} has {column.null_count} nulls"
        raise BadRecord(message, help="rows must not have nulls")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        message = f"column {name!r} is {column.type}"
        raise BadRecord(message, help="give numbers")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    # A column without chunks still has a type, which the empty array carries.
    return np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in (*chunks, pa.array([], column.type))])


def row_lists(name: str, column: pa.ChunkedArray) -> Array:
    """Return the lists of an Arrow column as a matrix.

    Raises:
        BadRecord: They are not lists, have nulls, or differ in length.
    """
    kind = column.type
    is_fixed = pa.types.is_fixed_size_list(kind)
    if not (is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        message = f"column {name!r} is {kind}"
        raise BadRecord(message, help="rows must be lists of numbers, all of the same length")
    if column.null_count:
        message = f"column {name!r} has {column.null_count} nulls"
        raise BadRecord(message, help="rows must not have nulls")
    widths = {kind.list_size} if is_fixed else {width for chunk in column.chunks for width in _widths(chunk)}
    if len(widths) > 1:
        message = f"column {name!r} has lists of {min(widths)} to {max(widths)} numbers"
        raise BadRecord(message, help="rows must be lists of numbers, all of the same length")
    width = widths.pop() if widths else 0
    numbers = pa.chunked_array([chunk.flatten() for chunk in column.chunks], kind.value_type)
    return values(name, numbers).reshape(len(column), width)


def _widths(chunk: pa.Array) -> list[int]:
    return [int(width) for width in np.unique(chunk.value_lengths().to_numpy())]
