"""Records are decoded in any thread, also where several are the first."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from streamlearn.struct_decoder import decoder_of, from_json, from_plain, packed_decoder_of
from streamlearn.table.options import Sgd

# What msgspec itself does not live through.
_THREADS = """
import sys, threading
from typing import Optional
import msgspec
from streamlearn.struct_decoder import from_json

def nested():
    kind = None
    for depth in range(6):
        fields = [(f"field_{at}", int, 0) for at in range(8)]
        inner = [("inner", Optional[kind], None)] if kind else []
        kind = msgspec.defstruct(f"Depth{depth}", [*fields, *inner])
    return kind

sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(8), []

def decode(kind):
    barrier.wait()
    found.append(from_json(b'{"field_0": 1, "inner": {"inner": {"field_3": 2}}}', kind).inner.inner.field_3)

for _ in range(100):
    kind = nested()
    threads = [threading.Thread(target=decode, args=(kind,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert found == [2] * 800
"""


class Point(msgspec.Struct):
    x: int


def test_threads_may_be_the_first_together() -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_declared_comes_back_and_other_things_are_refused() -> None:
    assert from_json(b'{"x": 1}', Point) == from_plain({"x": 1}, Point) == decoder_of(Point).decode(b'{"x": 1}')
    assert from_json('[{"x": 1}]', list[Point]) == [Point(1)]
    with pytest.raises(msgspec.ValidationError):
        from_json(b'{"x": "a"}', Point)
    with pytest.raises(msgspec.ValidationError):
        from_plain({}, Point)


_DEEP = b'{"y":' * 100_000


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Any),
        (b'"\x80"', Any),
        (b'{"\xff":1}', Point),
        (b'{"\xff":1}', dict[str, Any]),
        (b'{"x":"\xff"}', dict[str, Any]),
        (b"[" * 100_000, Any),
        (_DEEP, dict[str, Any]),
        (_DEEP, Point),
        (b'{"kind":"sgd","rate":1e300}', Sgd),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_json_that_cannot_be_decoded_raises_one_error(data: bytes, kind: Any) -> None:
    for decode in (from_json, lambda data, kind: decoder_of(kind).decode(data)):
        with pytest.raises(msgspec.DecodeError):
            decode(data, kind)


@pytest.mark.parametrize("data", [b"\xa1\x80", b"\x91" * 100_000], ids=lambda data: repr(data[:12]))
def test_packed_bytes_that_cannot_be_decoded_raise_that_error_too(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        packed_decoder_of(Any).decode(data)


def test_text_that_is_no_unicode_raises_that_error_too() -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json("\ud800", str)
