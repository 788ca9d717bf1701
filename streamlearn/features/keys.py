"""The keys of values: what a slot's rows are found by, from values as people have them.

It is the hash that events go through, so that a key computed here meets the rows that were learned there.
"""

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
    """The keys of a slot's values, one a value; of a multi-valued slot, of all rows' values one after another.

    Args:
        slot: Whose values they are. The same value of two slots has two keys, unless one has the keys of the other.
        values: Integers of 64 bits for a slot of `value="int"`, texts for one of `value="str"`: a list, or an array
            of one dimension.
        offsets: For texts as columns of events have them: the n + 1 places, int32 or int64, that cut `values`, which
            are then the UTF-8 bytes of all texts, end to end.

    Returns:
        uint64[n].

    Raises:
        UsageError: The values are not the slot's.
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
    cut, data = _encoded(slot, values) if offsets is None else (offsets, values)
    return native.hash_strings(cut, data, salt)  # type: ignore[arg-type]


def _integers(slot: Slot, values: Any) -> npt.NDArray[np.int64]:
    import numpy as np

    # An empty list is of no type, and no value is none of the wrong one.
    array = np.asarray(values) if len(values) else np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _refused(slot, f"{array.dtype} of shape {array.shape}", "give whole numbers of 64 bits")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise _refused(
            slot, f"{int(array.max())}", "integer values are signed 64-bit numbers; pass the values, not their keys"
        )
    return np.ascontiguousarray(array, np.int64)


def _encoded(slot: Slot, values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each text ends, and the bytes of all."""
    import numpy as np

    listed = values.tolist() if isinstance(values, np.ndarray) else values
    # One text is a sequence of texts, too, and never meant as that.
    wrong = [listed] if isinstance(listed, str) else [one for one in listed if not isinstance(one, str)]
    if wrong:
        raise _refused(slot, f"{wrong[0]!r:.80}", "give a list of texts")
    try:
        texts = [one.encode() for one in listed]
    except UnicodeEncodeError as error:
        raise _refused(slot, repr(error.object), "use valid Unicode without lone surrogates") from None
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return ends, np.frombuffer(b"".join(texts), np.uint8)


def _refused(slot: Slot, found: str, help: str) -> UsageError:
    return UsageError(f"slot {slot.name!r} has values of type {slot.value}, but was given {found}", help=help)
