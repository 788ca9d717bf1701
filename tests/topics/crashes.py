"""Writers that die: forked from a process of one thread, killed at a chosen step or at a random moment.

Run as a program: `python -m tests.topics.crashes steps|moments|maintain URL SEED ROUNDS`; prints what was
acknowledged, or for `maintain` what a reader finds after each death and the appends that follow it.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from streamlearn.topics import AccessSettings, Reader, Topic, create_topic, open_topic
from tests.dying import preloaded
from tests.topics.places import FixedClock

__all__ = ["main"]

_ACK = struct.Struct("<qq")
_BATCHES_MAX = 200
_MAINTENANCE_STEPS = 12
_APPENDS = 20
_DAY_MS = 86_400_000
_ACCESS = AccessSettings(lock_wait_ms=240_000)
_ACK_WAIT_S_MAX = 240


def main(mode: str, url: str, seed: int, rounds: int) -> None:
    chance, clock = random.Random(seed), FixedClock(time.time_ns() // 1_000_000)
    topic = open_topic(url, _ACCESS, clock=clock)
    acknowledged: list[tuple[int, int, int]] = []
    preloaded(partial(_tried, f"{url}-tried"))
    if mode == "maintain":
        print(json.dumps([_round_of_maintenance(topic, number, clock, chance) for number in range(rounds)]))
        return
    for number in range(rounds):
        if mode == "steps":
            acknowledged += _round_of_steps(topic, number, chance)
        else:
            acknowledged += _round_of_moments(topic, number, chance)
    print(json.dumps(acknowledged))


def _tried(url: str) -> None:
    """What every writer and reader does first, on a topic of its own."""
    with create_topic(url) as topic, topic.writer() as writer, topic.reader() as reader:
        writer.append(0, [b"value"], [b"key"])
        reader.read(0, 0)


def _round_of_steps(topic: Topic, number: int, chance: random.Random) -> list[tuple[int, int, int]]:
    """One writer dies at its step `number`; within a write, after a random part of it."""
    seed = chance.random()
    pid, acks = _forked(partial(_write, topic, number, random.Random(seed), dies_at=number))
    os.waitpid(pid, 0)
    return _drained(acks, number)


def _round_of_maintenance(
    topic: Topic, number: int, clock: FixedClock, chance: random.Random
) -> tuple[dict[str, str], list[str]]:
    """Maintenance dies at a step, then another writer appends; the last value of each key, and what is missing."""
    clock.now_ms += _DAY_MS
    dice = random.Random(chance.random())

    def maintain(pipe: int) -> None:
        _die_at(number % _MAINTENANCE_STEPS, dice)
        topic.maintain()

    pid, pipe = _forked(maintain)
    os.waitpid(pid, 0)
    os.close(pipe)
    appended: dict[int, bytes] = {}
    with topic.writer() as writer:
        for at in range(_APPENDS):
            value = b"%d:%d" % (number, at)
            appended[int(writer.append(0, [value], [b"k%d" % (at % 5)])[0])] = value
    with topic.reader() as reader:
        return _last_of_keys(reader), _missing(reader, appended, dense=not topic.settings().compacted)


def _last_of_keys(reader: Reader) -> dict[str, str]:
    last: dict[str, str] = {}
    offset, end = reader.earliest(0), reader.end(0)
    while offset < end:
        records = reader.read(0, offset)
        for key, value in zip(records.keys, records.values, strict=True):
            last[(key or b"").decode()] = (value or b"").decode()
        offset = records.next_offset
    return last


def _missing(reader: Reader, appended: dict[int, bytes], *, dense: bool) -> list[str]:
    """Every offset from which a new look does not begin with the record that is there."""
    found: dict[int, int] = {}
    earliest, end = reader.earliest(0), reader.end(0)
    wrong = [f"{offset} is beyond {end}" for offset in appended if offset >= end]
    for offset in range(end - 1, earliest - 1, -1):  # backwards, so that no read goes on where another ended
        records = reader.read(0, offset, max_records=1)
        found[offset] = int(records.offsets[0])
        if found[offset] not in (offset, found.get(offset + 1, end)) or (dense and found[offset] != offset):
            wrong.append(f"from {offset}: {found[offset]}")
        if found[offset] == offset and records.values[0] != appended.get(offset, records.values[0]):
            wrong.append(f"at {offset}: {records.values[0]!r}")
    return wrong


def _round_of_moments(topic: Topic, number: int, chance: random.Random) -> list[tuple[int, int, int]]:
    """Two writers at once are killed, each at a random moment after some acknowledgements."""
    writers = []
    for each in range(2):
        seed, name = chance.random(), number * 2 + each
        pid, acks = _forked(partial(_write, topic, name, random.Random(seed), dies_at=-1))
        writers.append((pid, acks, name))
    found = []
    for pid, acks, name in writers:
        _wait_for_bytes(acks)
        until_s = time.perf_counter() + chance.random() * 0.004
        while time.perf_counter() < until_s:
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found += _drained(acks, name)
    return found


def _write(topic: Topic, name: int, chance: random.Random, pipe: int, *, dies_at: int) -> None:
    if dies_at >= 0:
        _die_at(dies_at, chance)
    writer = topic.writer()
    for turn in range(_BATCHES_MAX):
        values = [
            b"%d:%d:%d:" % (name, turn, at) + bytes(chance.randrange(600)) for at in range(chance.randrange(1, 40))
        ]
        base = int(writer.append(0, values)[0])
        os.write(pipe, _ACK.pack(base, len(values)))


def _die_at(step: int, chance: random.Random) -> None:
    """Make the `step`-th change of files of this process its last."""
    left = step

    def dying(original: Callable[..., Any], torn: bool) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                return original(*args, **named)
            if torn:
                descriptor, data, position = args
                # A head lies in one page and one sector: it is written whole or not at all.
                whole = bytes(data[:4]) == b"SLH1"
                size = chance.choice([0, len(data)]) if whole else chance.randrange(len(data) + 1)
                original(descriptor, bytes(data)[:size], position)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        return call

    os.pwrite = dying(os.pwrite, True)
    os.ftruncate = dying(os.ftruncate, False)
    Path.write_bytes = dying(Path.write_bytes, False)  # type: ignore[method-assign]
    Path.replace = dying(Path.replace, False)  # type: ignore[method-assign]
    Path.unlink = dying(Path.unlink, False)  # type: ignore[method-assign]


def _forked(work: Callable[[int], None]) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            work(writing)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def _wait_for_bytes(pipe: int) -> None:
    ready, _, _ = select.select([pipe], [], [], _ACK_WAIT_S_MAX)
    assert ready, f"a writer acknowledged nothing for {_ACK_WAIT_S_MAX} s"


def _drained(pipe: int, name: int) -> list[tuple[int, int, int]]:
    data = b""
    while chunk := os.read(pipe, 65_536):
        data += chunk
    os.close(pipe)
    return [(name, base, count) for base, count in _ACK.iter_unpack(data)]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
