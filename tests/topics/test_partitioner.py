"""The partitioner agrees with Kafka's own clients."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.topics import kafka_link, partition_of


def test_keys_go_where_javas_client_sends_them() -> None:
    # Kafka's own test vectors of Utils.murmur2, made positive.
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, hashed in vectors.items():
        assert partition_of(key, 1_000_003) == (hashed & 0x7FFFFFFF) % 1_000_003


@given(st.binary(max_size=80), st.integers(1, 10_000))
def test_keys_go_where_kafka_python_sends_them(key: bytes, partitions: int) -> None:
    from kafka.partitioner.default import murmur2

    assert kafka_link.ErrorCode.NO_ERROR == 0
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def test_no_partitions_are_refused() -> None:
    with pytest.raises(ValueError, match="partitions: expected at least 1, got 0"):
        partition_of(b"key", 0)


def test_importing_topics_imports_no_kafka() -> None:
    program = (
        "import sys, streamlearn.topics as topics\n"
        "topics.create_topic('memory://a')\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'kafka']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
