"""Memory that is handed to XLA lies on boundaries, or is copied or refused; it never brings the process down."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from streamlearn.errors import UsageError
from streamlearn.serving.graphs.tensors import tensor_of
from streamlearn.serving.lanes.slab import ALIGNMENT_BYTES, Slab, aligned


def shifted(values: np.ndarray, offset: int) -> np.ndarray:
    memory = np.zeros(values.nbytes + 2 * ALIGNMENT_BYTES, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT_BYTES + offset
    found = memory[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    found[...] = values
    return found


def test_arrays_of_a_slab_lie_side_by_side_on_boundaries() -> None:
    one, two, three = Slab(((3, 5), np.float32), ((7,), np.int32), ((2, 2, 2), np.float32)).arrays
    assert [array.shape for array in (one, two, three)] == [(3, 5), (7,), (2, 2, 2)]
    assert [array.dtype.name for array in (one, two, three)] == ["float32", "int32", "float32"]
    assert all(array.ctypes.data % ALIGNMENT_BYTES == 0 for array in (one, two, three))
    assert two.ctypes.data - one.ctypes.data == three.ctypes.data - two.ctypes.data == ALIGNMENT_BYTES


@pytest.mark.parametrize("offset", [0, 4, 16, 32])
def test_an_array_that_is_not_aligned_is_copied(offset: int) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    given = shifted(values, offset)
    tensor = tensor_of(given)
    assert np.array_equal(tensor.numpy(), values)
    given[...] = -1
    is_same = np.array_equal(tensor.numpy(), given)
    assert is_same == (offset == 0)


def test_arrays_that_are_not_contiguous_or_not_to_be_written_to_are_copied() -> None:
    values = aligned(np.arange(32, dtype=np.float32).reshape(8, 4))
    assert np.array_equal(tensor_of(values.T).numpy(), values.T)
    assert np.array_equal(tensor_of(values[::2]).numpy(), values[::2])
    values.flags.writeable = False
    assert np.array_equal(tensor_of(values).numpy(), values)


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_a_capsule_that_is_not_aligned_is_refused(offset: int) -> None:
    capsule = shifted(np.ones(16, np.float32), offset).__dlpack__()
    with pytest.raises(UsageError, match="aligned to 64 bytes"):
        tensor_of(capsule)


def test_a_capsule_is_taken_once_and_its_memory_kept_as_long_as_the_tensor() -> None:
    class Watched(np.ndarray):
        pass

    array = aligned(np.ones((2, 3), np.float32)).view(Watched)
    is_gone = weakref.ref(array)
    capsule = array.__dlpack__()
    tensor = tensor_of(capsule)
    with pytest.raises(UsageError, match="already used"):
        tensor_of(capsule)
    with pytest.raises(UsageError, match="not a DLPack capsule"):
        tensor_of(3)
    del array, capsule
    gc.collect()
    assert is_gone() is not None
    assert tensor.numpy().sum() == 6
    del tensor
    gc.collect()
    assert is_gone() is None
