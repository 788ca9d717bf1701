"""A store of feature states in Redis. All keys of a partition have one hash tag, so that they change together."""

# ruff: noqa: D102 - the methods inherit the docstrings of `StateStore`

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from streamlearn.errors import StatesUnreachable, StreamlearnError
from streamlearn.online.state_store import Standing, StateGroup, StatePlace, StateStore, Written, new_run
from streamlearn.settings.features import FeatureSettings
from streamlearn.versions.pointer.redis_call import connected, redis_call
from streamlearn.versions.pointer.redis_url import RedisUrl

__all__ = ["SECRET_VARIABLE", "RedisStateStore"]

SECRET_VARIABLE = "STREAMLEARN_FEATURES_PASSWORD"
_CONNECTIONS_MAX = 32
# Most bytes in one answer: that of a read of many large states.
_BYTES_MAX = 256 << 20
_SCAN_COUNT = 1_000
_FIELDS = ("run", "position", "seen_from", "newest_ms", "topic_id")
# The run that claimed a partition last is the only one that writes.
_WRITE = """
local run, position = unpack(redis.call('HMGET', KEYS[1], 'run', 'position'))
if not run then return 2 end
if run ~= ARGV[1] then return 0 end
if (position or '0') ~= ARGV[7] and position ~= ARGV[2] then return 2 end
redis.call('HSET', KEYS[1], 'position', ARGV[2], 'seen_from', ARGV[3], 'newest_ms', ARGV[4], 'topic_id', ARGV[5])
local states, at = ARGV[9], 1
while at <= #states do
  local size = struct.unpack('<I4', states, at + 16)
  local name = ARGV[8] .. string.sub(states, at, at + 15)
  redis.call('SET', name, string.sub(states, at + 20, at + 19 + size), 'PX', ARGV[6])
  at = at + 20 + size
end
return 1
"""
# Many states as one text: redis-py takes longer for a thousand values than Redis and the fold together. Each has its
# size before it, as states have in a write, which also have the key.
_READ = """
local found, missing = {}, struct.pack('<I4', 4294967295)
for at = 1, #ARGV[2], 16 do
  local state = redis.call('GET', ARGV[1] .. string.sub(ARGV[2], at, at + 15))
  found[#found + 1] = state and struct.pack('<I4', #state) or missing
  if state then found[#found + 1] = state end
end
return table.concat(found)
"""
_MISSING, _SIZE = 0xFFFF_FFFF, struct.Struct("<I")


class RedisStateStore(StateStore):
    """States in a Redis; see `RedisUrl` for its URLs."""

    def __init__(self, url: str, settings: FeatureSettings) -> None:
        parsed = RedisUrl.parse(url, SECRET_VARIABLE)
        super().__init__(parsed.shown)
        self._password, self._reach_s = parsed.options.get("password", ""), settings.reach_s
        self._redis = connected(parsed, settings.reach_s, _CONNECTIONS_MAX)

    def claim(self, group: StateGroup, partition: int) -> Standing:
        run = new_run()
        with self._call():
            self._redis.hset(_at(group, partition), "run", run)
        return replace(self.standing(group, partition) or Standing(), run=run)

    def standing(self, group: StateGroup, partition: int) -> Standing | None:
        with self._call():
            values: Any = self._redis.hmget(_at(group, partition), _FIELDS)
            if values[0] is None:
                return None
            run, position, seen_from, newest_ms = (int(value or 0) for value in values[:4])
            return Standing(run, position, seen_from, newest_ms, (values[4] or b"").decode())

    def read(self, places: Sequence[StatePlace]) -> list[bytes | None]:
        if not places:
            return []
        with self._call():
            values: Any = self._redis.mget([_state(place.group, place.partition, place.key) for place in places])
            return list(values)

    def read_partition(self, group: StateGroup, partition: int, keys: Sequence[int]) -> list[bytes | None]:
        states: list[bytes | None] = []
        with self._call():
            names = "".join(f"{key:016x}" for key in keys)
            found: Any = self._redis.eval(_READ, 1, _at(group, partition), _prefix(group, partition), names)
            at = 0
            for _ in keys:
                (size,) = _SIZE.unpack_from(found, at)
                at += _SIZE.size
                states.append(None if size == _MISSING else found[at : at + size])
                at += 0 if size == _MISSING else size
        return states

    def remove(self, group: StateGroup, partition: int, keys: Sequence[int]) -> int:
        with self._call():
            removed: Any = self._redis.delete(*(_state(group, partition, key) for key in keys)) if keys else 0
            return int(removed)

    def switch(self, group: StateGroup) -> None:
        with self._call():
            mapping: dict[Any, Any] = {"epoch": group.epoch, "partitions": group.partitions}
            self._redis.hset(f"streamlearn:{group.base}:current", mapping=mapping)

    def _current(self, base: str) -> tuple[int, int] | None:
        with self._call():
            values: Any = self._redis.hmget(f"streamlearn:{base}:current", ("epoch", "partitions"))
            return None if None in values else (int(values[0]), int(values[1]))

    def drop(self, group: StateGroup) -> None:
        cursor = -1
        while cursor:
            with self._call():
                pattern = f"streamlearn:{{{group.name}:*"
                cursor, names = self._redis.scan(max(cursor, 0), match=pattern, count=_SCAN_COUNT)
                if names:
                    self._redis.unlink(*names)

    def close(self) -> None:
        """Close its connections."""
        self._redis.connection_pool.disconnect()

    def _write(
        self,
        group: StateGroup,
        partition: int,
        moved: tuple[Standing, Standing],
        states: Mapping[int, bytes],
        keep_ms: int,
    ) -> Written:
        before, after = moved
        where = (after.run, after.position, after.seen_from, after.newest_ms, after.topic_id, keep_ms, before.position)
        parts = (b"%016x%b%b" % (key, _SIZE.pack(len(state)), state) for key, state in states.items())
        with self._call():
            name, prefix = _at(group, partition), _prefix(group, partition)
            return Written(self._redis.eval(_WRITE, 1, name, *where, prefix, b"".join(parts)))

    @contextmanager
    def _call(self) -> Iterator[None]:
        try:
            with redis_call(self._reach_s, _BYTES_MAX):
                yield
        except StreamlearnError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:300] or type(error).__name__
            if self._password:
                text = text.replace(self._password, "...")
            if not isinstance(error, RedisError | OSError):
                text = f"invalid answer: {type(error).__name__}: {text}"
            message = f"the feature states at {self.url} do not answer: {text}"
            raise StatesUnreachable(
                message, help=f"start it, or see why; a password goes into {SECRET_VARIABLE}"
            ) from None


def _at(group: StateGroup, partition: int) -> str:
    return f"streamlearn:{{{group.name}:{partition}}}:at"


def _prefix(group: StateGroup, partition: int) -> str:
    return f"streamlearn:{{{group.name}:{partition}}}:s:"


def _state(group: StateGroup, partition: int, key: int) -> str:
    return f"{_prefix(group, partition)}{key:016x}"
