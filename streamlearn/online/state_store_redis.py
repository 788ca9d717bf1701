"""A store of feature states in Redis. All keys of a partition have one hash tag, so that they change together."""

# ruff: noqa: D102 - the methods inherit the docstrings of `StateStore`

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

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
for at = 2, #KEYS do redis.call('SET', KEYS[at], ARGV[at + 6], 'PX', ARGV[6]) end
return 1
"""
_FILLED = "if redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] then redis.call('HSET', KEYS[1], 'fills', 0) end"
# Redis does nothing else meanwhile, and nodes wait for their reads: about a millisecond.
_READ_MAX, _WRITE_MAX = 512, 256


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
            names = [_state(place.group, place.partition, place.key) for place in places]
            parts = [names[begin : begin + _READ_MAX] for begin in range(0, len(names), _READ_MAX)]
            return [value for part in parts for value in cast("list[bytes | None]", self._redis.mget(part))]

    def remove(self, group: StateGroup, partition: int, keys: Sequence[int]) -> int:
        with self._call():
            removed: Any = self._redis.delete(*(_state(group, partition, key) for key in keys)) if keys else 0
            return int(removed)

    def switch(self, group: StateGroup) -> None:
        with self._call():
            mapping: dict[Any, Any] = {"epoch": group.epoch, "partitions": group.partitions, "fills": int(group.fills)}
            self._redis.hset(f"streamlearn:{group.base}:current", mapping=mapping)

    def filled(self, group: StateGroup) -> None:
        with self._call():
            self._redis.eval(_FILLED, 1, f"streamlearn:{group.base}:current", group.epoch)

    def _current(self, base: str) -> tuple[int, int, bool] | None:
        with self._call():
            values: Any = self._redis.hmget(f"streamlearn:{base}:current", ("epoch", "partitions", "fills"))
            return None if None in values[:2] else (int(values[0]), int(values[1]), values[2] == b"1")

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
        named = [(_state(group, partition, key), state) for key, state in states.items()]
        parts = [named[begin : begin + _WRITE_MAX] for begin in range(0, len(named), _WRITE_MAX)] or [[]]
        for number, part in enumerate(parts, 1):
            # The standing moves with the last part: a state knows how far it is folded, so that another process which
            # folds the same again changes nothing in those of the first parts.
            found = self._write_part(
                _at(group, partition), part, (before, after if number == len(parts) else before), keep_ms
            )
            if found is not Written.DONE:
                return found
        return Written.DONE

    def _write_part(
        self, at: str, states: Sequence[tuple[bytes, bytes]], moved: tuple[Standing, Standing], keep_ms: int
    ) -> Written:
        before, after = moved
        names: list[Any] = [at, *(name for name, _ in states)]
        where = (after.run, after.position, after.seen_from, after.newest_ms, after.topic_id, keep_ms)
        with self._call():
            values = (state for _, state in states)
            return Written(self._redis.eval(_WRITE, len(names), *names, *where, before.position, *values))

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


def _state(group: StateGroup, partition: int, key: int) -> bytes:
    return b"streamlearn:{%b:%d}:s:%016x" % (group.name.encode(), partition, key)
