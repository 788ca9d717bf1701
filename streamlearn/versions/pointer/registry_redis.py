"""RedisRegistry: the registry in production, in a Redis; who waits is told by pub/sub.

All keys of a model have one hash tag, and what belongs together changes in one script. Nothing is tried twice: a call
that fails says so, and whoever made it knows what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from redis import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as ConnectionLost
from redis.retry import Retry

from streamlearn.errors import RegistryDefect, RegistryUnreachable
from streamlearn.settings.versions import RegistrySettings
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.redis_url import PASSWORD_VARIABLE, RedisUrl
from streamlearn.versions.pointer.registry import Ack, Node, Note, Registry
from streamlearn.versions.pointer.registry_codec import REBUILD_HELP, by_name, decode, decode_pointer, encode

__all__ = ["RedisRegistry"]

# KEYS pointer; ARGV seq, pointer, channel.
_ANNOUNCE = """
local kept = tonumber(redis.call('HGET', KEYS[1], 'seq') or '')
if kept and kept >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'seq', ARGV[1], 'data', ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[1])
return 1
"""
# KEYS the node, nodes by when they were heard of; ARGV boot id, node, ttl in ms.
_BEAT = """
local at = redis.call('TIME')
local now_ms = at[1] * 1000 + math.floor(at[2] / 1000)
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], now_ms, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms - ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
"""
# KEYS nodes by when they were heard of; ARGV what keys of nodes begin with.
_NODES = """
local found = {}
for _, boot_id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local node = redis.call('GET', ARGV[1] .. boot_id)
  if node then found[#found + 1] = node end
end
return found
"""
# KEYS acks of the move, moves with acks; ARGV boot id, ack, seq, nodes at most, moves at most, what keys of acks begin
# with, channel.
_ACK = """
if redis.call('HLEN', KEYS[1]) < tonumber(ARGV[4]) then redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[3])
while redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[5]) do
  redis.call('DEL', ARGV[6] .. redis.call('ZPOPMIN', KEYS[2])[1])
end
redis.call('PUBLISH', ARGV[7], ARGV[3])
"""
# KEYS pointer, versions, notes, nodes, moves with acks; ARGV what keys of nodes and of acks begin with.
_CLEAR = """
for _, boot_id in ipairs(redis.pcall('ZRANGE', KEYS[4], 0, -1)) do redis.call('DEL', ARGV[1] .. boot_id) end
for _, seq in ipairs(redis.pcall('ZRANGE', KEYS[5], 0, -1)) do redis.call('DEL', ARGV[2] .. seq) end
redis.call('DEL', unpack(KEYS))
"""
# How many versions one command says or forgets.
_VERSIONS_MAX = 500
# A waiter that hears nothing asks, after so long at most, whether the server is still there.
_SILENCE_S_MAX = 1.0
# How often one wait subscribes again; a server that ends subscriptions faster is no help to anybody.
_LOST_MAX = 16

Found = TypeVar("Found")


class RedisRegistry(Registry):
    """A registry in a Redis.

    Args:
        url: `redis://[USER@]HOST[:PORT][/DB]`, `rediss://` for TLS, or `unix:///SOCKET`.
        model: Of which model.
        settings: Limits.
    """

    def __init__(self, url: str, model: str, settings: RegistrySettings | None = None) -> None:
        parsed, limits = RedisUrl.parse(url), settings or RegistrySettings()
        super().__init__(parsed.shown, model, limits)
        self._password = parsed.options.get("password", "")
        kinds: dict[str, type[Any]] = {"rediss": SSLConnection, "unix": UnixDomainSocketConnection}
        kind = kinds.get(self.url.partition(":")[0], Connection)
        # A unix socket is connected to at once or not at all, and is not kept alive.
        over_tcp = {"socket_connect_timeout": limits.reach_s, "socket_keepalive": True}
        pool = BlockingConnectionPool(  # type: ignore[no-untyped-call]
            max_connections=limits.connections_max,
            timeout=limits.reach_s,
            connection_class=kind,
            socket_timeout=limits.reach_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **({} if kind is UnixDomainSocketConnection else over_tcp),
            **parsed.options,
        )
        self._redis = Redis(connection_pool=pool)
        self._prefix = f"streamlearn:{{{model}}}:"

    def announce(self, pointer: Pointer) -> bool:
        """See `Registry`."""
        return bool(self._script(_ANNOUNCE, ("pointer",), pointer.seq, encode(pointer), self._key("moved")))

    def pointer(self) -> Pointer | None:
        """See `Registry`."""
        with self._asked():
            return self._pointer()

    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        """See `Registry`."""

        def look() -> Pointer | None:
            found = self._pointer()
            return found if found is not None and found.seq > seq else None

        return self._heard("moved", look, lambda found: found is not None, timeout_s)

    def put_versions(self, known: Iterable[Known]) -> None:
        """See `Registry`."""
        for some in _some(known):
            with self._asked():
                self._redis.hset(self._key("versions"), mapping={str(one.version): encode(one) for one in some})

    def versions(self) -> list[Known]:
        """See `Registry`."""
        with self._asked():
            kept: Any = self._redis.hvals(self._key("versions"))
        return sorted((decode(data, Known, self.url) for data in kept), key=lambda one: one.version)

    def drop_versions(self, versions: Iterable[int]) -> None:
        """See `Registry`."""
        for some in _some(versions):
            with self._asked():
                self._redis.hdel(self._key("versions"), *map(str, some))

    def beat(self, node: Node) -> None:
        """See `Registry`."""
        ttl_ms = max(1, round(self.settings.node_ttl_s * 1_000))
        self._script(_BEAT, (f"node:{node.boot_id}", "nodes"), node.boot_id, encode(node), ttl_ms)

    def leave(self, boot_id: str) -> None:
        """See `Registry`."""
        with self._asked(), self._redis.pipeline() as both:
            both.delete(self._key(f"node:{boot_id}"))
            both.zrem(self._key("nodes"), boot_id)
            both.execute()

    def nodes(self) -> list[Node]:
        """See `Registry`."""
        kept = self._script(_NODES, ("nodes",), self._key("node:"))
        return by_name([decode(data, Node, self.url) for data in kept])

    def ack(self, ack: Ack) -> None:
        """See `Registry`."""
        bounds = self.settings.move_acks_max, self.settings.acks_max
        names = self._key("acks:"), self._key("acked")
        self._script(_ACK, (f"acks:{ack.seq}", "acks"), ack.boot_id, encode(ack), ack.seq, *bounds, *names)

    def acks(self, seq: int) -> list[Ack]:
        """See `Registry`."""
        with self._asked():
            return self._acks(seq)

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        """See `Registry`."""
        return self._heard("acked", lambda: self._acks(seq), lambda found: len(found) >= count, timeout_s)

    def note(self, note: Note) -> None:
        """See `Registry`."""
        # Lines of one time are kept in the order of their bytes: move, and then what they say.
        line = b"%012d" % note.seq + encode(note)
        with self._asked(), self._redis.pipeline() as both:
            both.zadd(self._key("notes"), {line: note.wall_ms})
            both.zremrangebyrank(self._key("notes"), 0, -self.settings.notes_max - 1)
            both.execute()

    def notes(self, count_max: int) -> list[Note]:
        """See `Registry`."""
        if count_max < 1:
            return []
        with self._asked():
            lines: Any = self._redis.zrange(self._key("notes"), -count_max, -1)
        return [decode(line[12:], Note, self.url) for line in lines]

    def clear(self) -> None:
        """See `Registry`."""
        whole = ("pointer", "versions", "notes", "nodes", "acks")
        self._script(_CLEAR, whole, self._key("node:"), self._key("acks:"))

    def close(self) -> None:
        """See `Registry`."""
        self._redis.close()
        self._redis.connection_pool.disconnect()

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _pointer(self) -> Pointer | None:
        data: Any = self._redis.hget(self._key("pointer"), "data")
        return None if data is None else decode_pointer(data, self.url)

    def _acks(self, seq: int) -> list[Ack]:
        kept: Any = self._redis.hvals(self._key(f"acks:{seq}"))
        return by_name([decode(data, Ack, self.url) for data in kept])

    def _script(self, script: str, names: Iterable[str], *values: bytes | str | int) -> Any:
        # Whole each time, and not by digest: a server that was started again knows no digest.
        keys = [self._key(name) for name in names]
        with self._asked():
            return self._redis.eval(script, len(keys), *keys, *values)

    def _heard(
        self, channel: str, look: Callable[[], Found], is_enough: Callable[[Found], bool], timeout_s: float
    ) -> Found:
        """Look whenever something is said on a channel, until it is enough or the time is over."""
        until_s, lost = time.monotonic() + timeout_s, 0
        while True:
            with self._asked(), self._redis.pubsub() as said:  # type: ignore[no-untyped-call]
                self._subscribe(said, channel)
                while True:
                    # Not before the subscription: what is said between the two would be missed.
                    found = look()
                    left_s = until_s - time.monotonic()
                    if is_enough(found) or left_s <= 0:
                        return found
                    try:
                        said.get_message(timeout=min(left_s, self.settings.reach_s / 2, _SILENCE_S_MAX))
                    except ConnectionLost:
                        lost += 1
                        if lost > _LOST_MAX:
                            raise
                        break

    def _subscribe(self, said: PubSub, channel: str) -> None:
        said.subscribe(self._key(channel))
        if said.get_message(timeout=self.settings.reach_s) is None:
            message = f"no answer within {self.settings.reach_s} s"
            raise ConnectionLost(message)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Any trouble with Redis within is the registry's, and says nothing secret."""
        try:
            yield
        except (RedisError, OSError) as error:
            said = " ".join(str(error).split())[:300] or type(error).__name__
            if self._password:
                said = said.replace(self._password, "...")
            help = "start it, or see why it does not answer; nodes keep following the pointer in the store"
            if isinstance(error, AuthenticationError | NoPermissionError) or "NOAUTH" in said:
                help = f"give the user of the URL its permissions, and its password in {PASSWORD_VARIABLE}"
            message = f"the registry at {self.url} does not answer: {said}"
            if "WRONGTYPE" in said:
                message = f"the registry at {self.url} holds data of another kind: {said}"
                raise RegistryDefect(message, help=REBUILD_HELP) from None
            raise RegistryUnreachable(message, help=help) from None


def _some(many: Iterable[Found]) -> Iterator[list[Found]]:
    """The same in lists that one command takes."""
    left = iter(many)
    while some := list(islice(left, _VERSIONS_MAX)):
        yield some
