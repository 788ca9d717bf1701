"""The keys of a slot's values, computed with the hash that events use, so that they find the learned rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamlearn.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from streamlearn.features.spec import Slot

__all__ = ["keys_of"]


def keys_of(
    slot: Slot, values: Sequence[int] | Sequence[str] | npt.NDArray[Any], *, offsets: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the keys of a slot's n values, as uint64[n]; of a multi-valued slot, of all rows one after another.

    Two slots give the same value different keys, unless one sets `keys_of` to the other. `values` is a list or
    one-dimensional array: 64-bit integers for `value="int"`, texts for `value="str"`. Texts may also come as in the
    columns of events: `values` then holds the UTF-8 bytes of all texts, and `offsets` the n + 1 positions, int32 or
    int64, that separate them.

    Raises:
        UsageError: The values are not of the slot's type.
        ValueError: The offsets do not describe the bytes.

    Examples:
        >>> from streamlearn.features import Slot
        >>> videos = keys_of(Slot("video_id", "item"), [7, 8, 7])
        >>> videos.dtype, bool(videos[0] == videos[2]), bool(videos[0] == videos[1])
        (dtype('uint64'), True, False)
        >>> history = Slot("watched", "user", multi=True, pooling="sequence", length=8, keys_of="video_id")
        >>> bool(keys_of(history, [7])[0] == videos[0])
        True
    """
    # Declaring features needs neither NumPy nor the compiled module; hashing values does.
    from streamlearn.native import native

    salt = native.slot_salt(slot.salt_name)
    if slot.value == "int":
        if offsets is not None:
            raise _refused(slot, "offsets", "leave them out: the offsets already separate the texts")
        return native.hash_ints(_integers(slot, values), salt)
    ends, data = _encoded(slot, values) if offsets is None else (offsets, values)
    return native.hash_strings(ends, data, salt)  # type: ignore[arg-type]


def _integers(slot: Slot, values: Any) -> npt.NDArray[np.int64]:
    import numpy as np

    array = np.asarray(values) if len(values) else np.empty(0, np.int64)  # an empty list has no integer type
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _refused(slot, f"{array.dtype} of shape {array.shape}", "give whole numbers of 64 bits")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        help = "integer values are signed 64-bit numbers; pass the values, not their keys"
        raise _refused(slot, f"{int(array.max())}", help)
    return np.ascontiguousarray(array, np.int64)


def _encoded(slot: Slot, values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the positions that separate the texts, and the bytes of all."""
    import numpy as np

    texts = values.tolist() if isinstance(values, np.ndarray) else values
    # A text is itself a sequence of texts, but never meant as one.
    invalid = [texts] if isinstance(texts, str) else [value for value in texts if not isinstance(value, str)]
    if invalid:
        raise _refused(slot, f"{invalid[0]!r:.80}", "give a list of texts")
    try:
        encoded = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise _refused(slot, repr(error.object), "use valid Unicode without lone surrogates") from None
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return ends, np.frombuffer(b"".join(encoded), np.uint8)


def _refused(slot: Slot, given: str, help: str) -> UsageError:
    return UsageError(f"slot {slot.name!r} has values of type {slot.value}, but was given {given}", help=help)
