"""Keys: known values of XXH3-64, and arguments that are refused."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.native import native

SALT = 0x1234_5678_9ABC_DEF0

# Computed by the reference implementation of XXH3 (xxHash 0.8), seeded by SALT.
INT_KEYS = {
    0: 0x4A44_037D_CA4B_1E46,
    1: 0xD4A2_29F7_AD5C_FA99,
    -1: 0xE839_925A_4870_7C17,
    42: 0x0C5D_CE63_351A_35FB,
    2**63 - 1: 0xF5E3_4F29_D9C8_8910,
    -(2**63): 0x92FA_B357_A6DD_713D,
}
STRING_KEYS = {
    "": 0x8AA5_6C2C_3D83_17F6,
    "a": 0xB3D4_9906_9B2D_173A,
    "abc": 0xFDC1_D438_21BA_04D4,
    "abcd": 0x2297_9B0F_1FC4_70C1,
    "abcdefgh": 0xEEAD_4560_568D_346F,
    "abcdefghi": 0x54CF_0185_8163_EFAD,
    "0123456789abcdef": 0x33B6_7998_D5F3_16D1,
    "0123456789abcdefg": 0x8794_6F1F_82E4_F3A3,
    "über 火車": 0x949D_F4A7_23C6_C125,
    "x" * 128: 0x666D_A8BF_1C6D_1B6F,
    "y" * 129: 0x2792_BD7F_152C_01CE,
    "z" * 241: 0xCB9B_DF81_8280_1379,
}


def flat(values: list[str], dtype: Any = np.int32) -> tuple[Any, Any]:
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(dtype)
    return offsets, np.frombuffer(b"".join(encoded), np.uint8)


def test_the_salt_of_a_slot_is_the_hash_of_its_name() -> None:
    assert native.slot_salt("video_id") == 0xC928_2427_998B_5402
    assert native.slot_salt("") == 0x2D06_8005_38D3_94C2


def test_integers_have_their_known_keys() -> None:
    keys = native.hash_ints(np.array(list(INT_KEYS), np.int64), SALT)
    assert keys.dtype == np.uint64
    assert keys.tolist() == list(INT_KEYS.values())


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_strings_have_their_known_keys(dtype: Any) -> None:
    keys = native.hash_strings(*flat(list(STRING_KEYS), dtype), SALT)
    assert keys.dtype == np.uint64
    assert keys.tolist() == list(STRING_KEYS.values())


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 2**64 - 1))
def test_an_integer_has_the_key_of_its_eight_bytes(values: list[int], salt: int) -> None:
    array = np.array(values, "<i8")
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(8)
    by_bytes = native.hash_strings(offsets, np.frombuffer(array.tobytes(), np.uint8), salt)
    assert native.hash_ints(array, salt).tolist() == by_bytes.tolist()


def test_keys_are_written_where_the_caller_says() -> None:
    out = np.zeros(3, np.uint64)
    values = np.arange(3)
    assert native.hash_ints(values, SALT, out=out) is out
    assert out.tolist() == native.hash_ints(values, SALT).tolist()
    assert native.hash_strings(*flat(["a", "", "c"]), SALT, out=out) is out
    assert out.tolist() == native.hash_strings(*flat(["a", "", "c"]), SALT).tolist()


def test_no_values_have_no_keys() -> None:
    assert native.hash_ints(np.array([], np.int64), SALT).tolist() == []
    assert native.hash_strings(*flat([]), SALT).tolist() == []


def misaligned() -> Any:
    return np.zeros(25, np.uint8)[1:].view(np.int64)


BAD_VALUES = [
    (np.zeros((3, 4), np.float32), "float32 of shape (3, 4)"),
    (np.zeros((3, 4), np.int64), "int64 of shape (3, 4)"),
    (np.zeros(3, np.uint64), "uint64 of shape (3,)"),
    (np.zeros(3, ">i8"), ">i8 of shape (3,)"),
    (np.zeros(6, np.int64)[::2], "a non-contiguous int64 of shape (3,)"),
    (np.int64(3), "int64"),
    (misaligned(), "a misaligned int64 of shape (3,)"),
    ([1, 2, 3], "list"),
    (None, "NoneType"),
]


@pytest.mark.parametrize(("values", "got"), BAD_VALUES, ids=[got for _, got in BAD_VALUES])
def test_another_array_than_asked_for_is_refused_by_name(values: Any, got: str) -> None:
    with pytest.raises(TypeError) as caught:
        native.hash_ints(values, SALT)
    assert str(caught.value) == f"values: expected a C-contiguous 1-D int64 array, got {got}"


def test_each_argument_is_refused_by_its_own_name() -> None:
    offsets, data = flat(["a"])
    no_array: Any = [0, 1]
    with pytest.raises(TypeError, match=r"^offsets: expected a C-contiguous 1-D int32 or int64 array, got int16 of"):
        native.hash_strings(offsets.astype(np.int16), data, SALT)
    with pytest.raises(TypeError, match=r"^data: expected a C-contiguous 1-D uint8 array, got int8 of"):
        native.hash_strings(offsets, data.astype(np.int8), SALT)
    with pytest.raises(TypeError, match=r"^out: expected a C-contiguous 1-D uint64 array, got int64 of"):
        native.hash_strings(offsets, data, SALT, out=np.zeros(1, np.int64))
    with pytest.raises(TypeError, match=r"^offsets: expected"):
        native.check_offsets(no_array, 1)


def test_keys_are_not_written_where_they_cannot_be() -> None:
    values = np.arange(3)
    with pytest.raises(ValueError, match=r"^out: expected 3 values, got 2$"):
        native.hash_ints(values, SALT, out=np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match=r"^out: the array shares memory"):
        native.hash_ints(values, SALT, out=values.view(np.uint64))
    frozen = np.zeros(3, np.uint64)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: the array is read-only$"):
        native.hash_ints(values, SALT, out=frozen)


BAD_OFFSETS = [
    ([], "no offsets; n values need n + 1 offsets"),
    ([1, 5], "offsets[0] is 1 and must be 0"),
    ([-1, 5], "offsets[0] is -1 and must be 0"),
    ([0, 4, 3, 2, 5], "offsets[2] is 3, less than 4 before it"),
    ([0, 2**31 - 1, 5], "offsets[2] is 5, less than 2147483647 before it"),
    ([0, 4], "offsets[1] is 4 and must be 5, the length of the data"),
]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("offsets", "reason"), BAD_OFFSETS)
def test_offsets_that_do_not_fit_their_data_are_refused(offsets: list[int], reason: str, dtype: Any) -> None:
    bad = np.array(offsets, dtype)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        native.check_offsets(bad, 5)
    assert str(caught.value) == reason
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        native.hash_strings(bad, np.zeros(5, np.uint8), SALT)
    assert str(caught.value) == reason


def test_offsets_that_fit_their_data_pass() -> None:
    native.check_offsets(np.array([0], np.int32), 0)
    native.check_offsets(np.array([0, 0, 3, 3, 7], np.int64), 7)


def test_threads_may_hash_the_same_array() -> None:
    values = np.arange(100_000)
    expected = native.hash_ints(values, SALT)
    keys = [np.zeros(len(values), np.uint64) for _ in range(4)]
    threads = [threading.Thread(target=native.hash_ints, args=(values, SALT, out)) for out in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all((out == expected).all() for out in keys)
