"""RedisRegistry: the registry for production, in a Redis. Pub/sub wakes waiters.

All keys of a model have one hash tag, and related keys change in one script. Nothing is retried: a failed call raises,
and the caller decides.
"""

# ruff: noqa: D102 - the methods inherit the docstrings of `Registry`

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from redis.client import PubSub
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as ConnectionLost

from streamlearn.errors import RegistryDefect, RegistryUnreachable, StreamlearnError
from streamlearn.settings.versions import RegistrySettings
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.redis_call import AnswerTooLarge, connected, redis_call
from streamlearn.versions.pointer.redis_url import PASSWORD_VARIABLE, RedisUrl
from streamlearn.versions.pointer.registry import (
    NODES_MAX,
    REBUILD_HELP,
    Ack,
    Node,
    Note,
    Registry,
    by_name,
    decode,
    decode_nodes,
    decode_pointer,
    encode,
)

__all__ = ["RedisRegistry"]

# KEYS pointer, acks of the move; ARGV seq, pointer, channel. Another program's key in
# the place of the acks would hide them.
_ANNOUNCE = """
local kept = tonumber(redis.call('HGET', KEYS[1], 'seq') or '')
if kept and kept >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'seq', ARGV[1], 'data', ARGV[2])
if redis.call('TYPE', KEYS[2]).ok ~= 'hash' then redis.call('DEL', KEYS[2]) end
redis.call('PUBLISH', ARGV[3], ARGV[1])
return 1
"""
# KEYS node, nodes by time of heartbeat; ARGV boot id, node, how long it is known in ms.
_BEAT = """
local at = redis.call('TIME')
local now_ms = at[1] * 1000 + math.floor(at[2] / 1000)
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], now_ms, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms - ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
"""
# KEYS nodes by time of heartbeat; ARGV prefix of the keys of nodes, nodes at most, and the ages in ms between which
# heartbeats count: the greatest, and the least or nothing. Of too many, only boot ids.
_NODES = """
local at = redis.call('TIME')
local now_ms = at[1] * 1000 + math.floor(at[2] / 1000)
local newest, oldest, found = '+inf', '(' .. (now_ms - ARGV[3]), {}
if ARGV[4] ~= '' then newest = now_ms - ARGV[4] end
local boot_ids = redis.call('ZREVRANGEBYSCORE', KEYS[1], newest, oldest, 'LIMIT', 0, ARGV[2] + 1)
if #boot_ids > tonumber(ARGV[2]) then return boot_ids end
for _, boot_id in ipairs(boot_ids) do
  local node = redis.call('GET', ARGV[1] .. boot_id)
  if node then found[#found + 1] = node end
end
return found
"""
# KEYS acks of the move, moves with acks; ARGV boot id, ack, seq, nodes at most, moves at most, prefix of the keys of
# acks, channel.
_ACK = """
if redis.call('HLEN', KEYS[1]) < tonumber(ARGV[4]) then redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[3])
while redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[5]) do
  redis.call('DEL', ARGV[6] .. redis.call('ZPOPMIN', KEYS[2])[1])
end
redis.call('PUBLISH', ARGV[7], ARGV[3])
"""
# KEYS pointer, versions, notes, nodes, moves with acks; ARGV prefixes of the keys of nodes and of acks.
_CLEAR = """
for _, boot_id in ipairs(redis.pcall('ZRANGE', KEYS[4], 0, -1)) do redis.call('DEL', ARGV[1] .. boot_id) end
for _, seq in ipairs(redis.pcall('ZRANGE', KEYS[5], 0, -1)) do redis.call('DEL', ARGV[2] .. seq) end
redis.call('DEL', unpack(KEYS))
"""
# Versions in one command.
_VERSIONS_MAX = 500
# Most bytes in the answer to one call, and to one that reads a list. Nodes only read the copy of the pointer.
_BYTES_MAX, _LIST_BYTES_MAX = 4 << 20, 64 << 20
# A waiter checks its condition again after this silence, and so notices that the server is gone.
_SILENCE_S_MAX = 1.0
# Lost subscriptions that one wait tolerates before it gives up.
_LOST_MAX = 16

Result = TypeVar("Result")


class RedisRegistry(Registry):
    """A registry in a Redis; see `RedisUrl` for its URLs."""

    def __init__(self, url: str, model: str, settings: RegistrySettings | None = None) -> None:
        parsed, limits = RedisUrl.parse(url), settings or RegistrySettings()
        super().__init__(parsed.shown, model, limits)
        self._password = parsed.options.get("password", "")
        self._redis = connected(parsed, limits.reach_s, limits.connections_max)
        self._prefix = f"streamlearn:{{{model}}}:"

    def announce(self, pointer: Pointer) -> bool:
        names = "pointer", f"acks:{pointer.seq}"
        return bool(self._script(_ANNOUNCE, names, pointer.seq, encode(pointer), self._key("moved")))

    def pointer(self) -> Pointer | None:
        with self._call():
            data: Any = self._redis.hget(self._key("pointer"), "data")
            return None if data is None else decode_pointer(data, self.url)

    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        def look() -> Pointer | None:
            copy = self.pointer()
            return copy if copy is not None and copy.seq > seq else None

        return self._wait_for("moved", look, lambda copy: copy is not None, timeout_s)

    def put_versions(self, known: Iterable[Known]) -> None:
        for chunk in _chunks(known):
            mapping: Any = {str(entry.version): encode(entry) for entry in chunk}
            with self._call():
                self._redis.hset(self._key("versions"), mapping=mapping)

    def versions(self) -> list[Known]:
        with self._call(_LIST_BYTES_MAX):
            values: Any = self._redis.hvals(self._key("versions"))
            return sorted((decode(data, Known, self.url) for data in values), key=lambda entry: entry.version)

    def drop_versions(self, versions: Iterable[int]) -> None:
        for chunk in _chunks(versions):
            with self._call():
                self._redis.hdel(self._key("versions"), *map(str, chunk))

    def beat(self, node: Node) -> None:
        self._script(_BEAT, (f"node:{node.boot_id}", "nodes"), node.boot_id, encode(node), self._silent_ms)

    def leave(self, boot_id: str) -> None:
        with self._call(), self._redis.pipeline() as pipeline:
            pipeline.delete(self._key(f"node:{boot_id}"))
            pipeline.zrem(self._key("nodes"), boot_id)
            pipeline.execute()

    def nodes(self) -> list[Node]:
        return self._nodes(self._ttl_ms, "")

    def silent(self) -> list[Node]:
        return self._nodes(self._silent_ms, self._ttl_ms)

    def _nodes(self, oldest_ms: int, newest_ms: int | str) -> list[Node]:
        """Return the nodes whose last heartbeat is younger than `oldest_ms`, and not younger than `newest_ms`."""
        with self._call():
            arguments = self._key("node:"), NODES_MAX, oldest_ms, newest_ms
            return decode_nodes(self._script(_NODES, ("nodes",), *arguments, bytes_max=_LIST_BYTES_MAX), self.url)

    def ack(self, ack: Ack) -> None:
        bounds = self.settings.move_acks_max, self.settings.acks_max
        names = self._key("acks:"), self._key("acked")
        self._script(_ACK, (f"acks:{ack.seq}", "acks"), ack.boot_id, encode(ack), ack.seq, *bounds, *names)

    def acks(self, seq: int) -> list[Ack]:
        with self._call(_LIST_BYTES_MAX):
            values: Any = self._redis.hvals(self._key(f"acks:{seq}"))
            return by_name([decode(data, Ack, self.url) for data in values])

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        return self._wait_for("acked", lambda: self.acks(seq), lambda acks: len(acks) >= count, timeout_s)

    def note(self, note: Note) -> None:
        # Redis orders lines of one time by their bytes: by move, then by content.
        line = b"%012d" % note.seq + encode(note)
        with self._call(), self._redis.pipeline() as pipeline:
            pipeline.zadd(self._key("notes"), {line: note.wall_ms})
            pipeline.zremrangebyrank(self._key("notes"), 0, -self.settings.notes_max - 1)
            pipeline.execute()

    def notes(self, count_max: int) -> list[Note]:
        if count_max < 1:
            return []
        with self._call(_LIST_BYTES_MAX):
            lines: Any = self._redis.zrange(self._key("notes"), -count_max, -1)
            return [decode(line[12:], Note, self.url) for line in lines]

    def clear(self) -> None:
        names = ("pointer", "versions", "notes", "nodes", "acks")
        self._script(_CLEAR, names, self._key("node:"), self._key("acks:"))

    def close(self) -> None:
        self._redis.close()
        self._redis.connection_pool.disconnect()

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _script(
        self, script: str, names: Iterable[str], *values: bytes | str | int, bytes_max: int = _BYTES_MAX
    ) -> Any:
        # The whole script each time: a restarted server would not know its digest.
        keys = [self._key(name) for name in names]
        with self._call(bytes_max):
            return self._redis.eval(script, len(keys), *keys, *values)

    def _wait_for(
        self, channel: str, look: Callable[[], Result], is_enough: Callable[[Result], bool], timeout_s: float
    ) -> Result:
        """Look after every message on a channel, until the result is enough or the timeout is over."""
        until_s, lost = time.monotonic() + timeout_s, 0
        while True:
            wait = self._call(wait_s=max(0.0, until_s - time.monotonic()))
            with wait, self._redis.pubsub() as subscription:  # type: ignore[no-untyped-call]
                self._subscribe(subscription, channel)
                while True:
                    # Only after the subscription: a message between the two would be missed.
                    result = look()
                    left_s = until_s - time.monotonic()
                    if is_enough(result) or left_s <= 0:
                        return result
                    try:
                        with redis_call(self.settings.reach_s, _BYTES_MAX):
                            subscription.get_message(timeout=min(left_s, self.settings.reach_s / 2, _SILENCE_S_MAX))
                    except ConnectionLost:
                        lost += 1
                        if lost > _LOST_MAX:
                            raise
                        break

    def _subscribe(self, subscription: PubSub, channel: str) -> None:
        with redis_call(self.settings.reach_s, _BYTES_MAX):
            subscription.subscribe(self._key(channel))
            is_subscribed = subscription.get_message(timeout=self.settings.reach_s) is not None
        if not is_subscribed:
            message = f"no answer within {self.settings.reach_s} s"
            raise ConnectionLost(message)

    @contextmanager
    def _call(self, bytes_max: int = _BYTES_MAX, wait_s: float = 0.0) -> Iterator[None]:
        """Bound a call, and turn what goes wrong with its answer into our errors, without secrets."""
        try:
            with redis_call(self.settings.reach_s + wait_s, bytes_max):
                yield
        except StreamlearnError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:300] or type(error).__name__
            if self._password:
                text = text.replace(self._password, "...")
            if isinstance(error, AnswerTooLarge):
                message = f"the registry at {self.url} holds too much: an answer has more than {bytes_max:,} bytes"
                raise RegistryDefect(message, help=REBUILD_HELP) from None
            if "WRONGTYPE" in text:
                message = f"the registry at {self.url} holds data of another kind: {text}"
                raise RegistryDefect(message, help=REBUILD_HELP) from None
            help = "start it, or see why it does not answer; nodes keep following the pointer in the store"
            if isinstance(error, AuthenticationError | NoPermissionError) or "NOAUTH" in text:
                help = f"give the user of the URL its permissions, and its password in {PASSWORD_VARIABLE}"
            if not isinstance(error, RedisError | OSError):
                text = f"invalid answer: {type(error).__name__}: {text}"
            message = f"the registry at {self.url} does not answer: {text}"
            raise RegistryUnreachable(message, help=help) from None


def _chunks(items: Iterable[Result]) -> Iterator[list[Result]]:
    """Split items into lists for one command each."""
    iterator = iter(items)
    while chunk := list(islice(iterator, _VERSIONS_MAX)):
        yield chunk
