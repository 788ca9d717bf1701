"""SqliteRegistry: the registry of one machine, in a file that any number of processes share; waiting is polling."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryUnreachable, UsageError
from streamlearn.settings.versions import RegistrySettings
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.registry import Ack, Node, Note, Registry
from streamlearn.versions.pointer.registry_codec import by_name, decode, decode_pointer, encode

__all__ = ["SqliteRegistry"]

_SCHEMA = 1
_TABLES = (
    "CREATE TABLE pointers (model TEXT PRIMARY KEY, seq INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE versions (model TEXT, version INTEGER, data BLOB NOT NULL,"
    " PRIMARY KEY (model, version)) WITHOUT ROWID",
    "CREATE TABLE nodes (model TEXT, boot_id TEXT, heard_ms INTEGER NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (model, boot_id)) WITHOUT ROWID",
    "CREATE TABLE acks (model TEXT, seq INTEGER, boot_id TEXT, data BLOB NOT NULL,"
    " PRIMARY KEY (model, seq, boot_id)) WITHOUT ROWID",
    "CREATE TABLE notes (model TEXT, wall_ms INTEGER, seq INTEGER, data BLOB,"
    " PRIMARY KEY (model, wall_ms, seq, data)) WITHOUT ROWID",
)
_ANNOUNCE = (
    "INSERT INTO pointers VALUES (?, ?, ?) ON CONFLICT (model) DO UPDATE SET seq = excluded.seq, data = excluded.data"
    " WHERE excluded.seq > pointers.seq"
)
_NEWEST = "ORDER BY wall_ms DESC, seq DESC, data DESC"
# Connections that nobody uses now and that are kept; more are closed.
_IDLE_MAX = 8
_PAUSE_S = 0.005
# None of this process connects while the file is made and closed.
_MAKING = threading.Lock()

Found = TypeVar("Found")


class _Link:
    """A connection, and which file it is of: a file that was moved away is not the registry any more."""

    def __init__(self, path: Path, settings: RegistrySettings) -> None:
        _make(path)
        self.file = _identity(path)
        self.sql = sqlite3.connect(path, timeout=settings.reach_s, isolation_level=None, check_same_thread=False)
        self.sql.execute("PRAGMA synchronous = NORMAL")
        self.pid = os.getpid()

    def prepare(self, url: str, until_s: float) -> None:
        """Make the tables unless they are there, and see that they are those we know."""
        if self._check(url):
            return
        # Others may do so at the same time, and SQLite does not wait for them here by itself.
        while True:
            try:
                self.sql.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                    raise
                time.sleep(_PAUSE_S)
        with self.writing():
            if not self._check(url):
                for table in _TABLES:
                    self.sql.execute(table)
                self.sql.execute(f"PRAGMA user_version = {_SCHEMA}")

    def _check(self, url: str) -> bool:
        """Whether the file is a registry; one that is neither that nor empty is somebody else's."""
        # In this order: whoever makes the tables says so with them.
        tables = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        schema = int(self.sql.execute("PRAGMA user_version").fetchone()[0])
        if schema == _SCHEMA:
            return True
        if schema or tables:
            message = (
                f"the registry at {url} has schema {schema} and {tables} tables; this release uses schema {_SCHEMA}"
            )
            help = "use the release that created it, or move the file away: it is then rebuilt from the store"
            raise RegistryUnreachable(message, help=help)
        return False

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes."""
        self.sql.execute("BEGIN IMMEDIATE")
        try:
            yield self.sql
        except BaseException:
            self.sql.execute("ROLLBACK")
            raise
        self.sql.execute("COMMIT")


class SqliteRegistry(Registry):
    """A registry in a SQLite file, which is made with its folder when it is first used.

    Args:
        url: `sqlite://` and the path, such as `sqlite:///var/lib/streamlearn/registry.db`.
        model: Of which model; a file may be of many.
        settings: Limits.
        clock: When nodes were heard of, and how waits pass.
    """

    def __init__(
        self, url: str, model: str, settings: RegistrySettings | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(url, model, settings or RegistrySettings())
        path = url.removeprefix("sqlite://")
        if not url.startswith("sqlite:///") or path.endswith("/"):
            message = f"{url[:200]!r} names no file"
            raise UsageError(
                message, help="write sqlite:// and the whole path: sqlite:///var/lib/streamlearn/registry.db"
            )
        self._path, self._clock = Path(path), clock
        self._idle: list[_Link] = []
        # Connections from before a fork: whoever closes them here breaks the locks of the process they are of.
        self._foreign: list[_Link] = []
        self._lock = threading.Lock()

    def announce(self, pointer: Pointer) -> bool:
        """See `Registry`."""
        with self._writing() as sql:
            return sql.execute(_ANNOUNCE, (self.model, pointer.seq, encode(pointer))).rowcount > 0

    def pointer(self) -> Pointer | None:
        """See `Registry`."""
        return self._newer(None)

    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        """See `Registry`."""
        return self._poll(lambda: self._newer(seq), lambda found: found is not None, timeout_s)

    def put_versions(self, known: Iterable[Known]) -> None:
        """See `Registry`."""
        rows = [(self.model, one.version, encode(one)) for one in known]
        with self._writing() as sql:
            sql.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", rows)

    def versions(self) -> list[Known]:
        """See `Registry`."""
        found = self._rows("SELECT data FROM versions WHERE model = ? ORDER BY version")
        return [decode(data, Known, self.url) for data in found]

    def drop_versions(self, versions: Iterable[int]) -> None:
        """See `Registry`."""
        rows = [(self.model, version) for version in versions]
        with self._writing() as sql:
            sql.executemany("DELETE FROM versions WHERE model = ? AND version = ?", rows)

    def beat(self, node: Node) -> None:
        """See `Registry`."""
        with self._writing() as sql:
            now_ms = self._clock.wall_ms()
            row = (self.model, node.boot_id, now_ms, encode(node))
            sql.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", row)
            sql.execute("DELETE FROM nodes WHERE abs(? - heard_ms) >= ?", (now_ms, self._ttl_ms))

    def leave(self, boot_id: str) -> None:
        """See `Registry`."""
        with self._writing() as sql:
            sql.execute("DELETE FROM nodes WHERE model = ? AND boot_id = ?", (self.model, boot_id))

    def nodes(self) -> list[Node]:
        """See `Registry`."""
        # A node heard of in the future was heard of before the clock was put back.
        where = "SELECT data FROM nodes WHERE model = ? AND abs(? - heard_ms) < ?"
        found = self._rows(where, self._clock.wall_ms(), self._ttl_ms)
        return by_name([decode(data, Node, self.url) for data in found])

    def ack(self, ack: Ack) -> None:
        """See `Registry`."""
        with self._writing() as sql:
            sql.execute(
                "INSERT OR IGNORE INTO acks SELECT ?1, ?2, ?3, ?4"
                " WHERE (SELECT count(*) FROM acks WHERE model = ?1 AND seq = ?2) < ?5",
                (self.model, ack.seq, ack.boot_id, encode(ack), self.settings.move_acks_max),
            )
            # Two steps, here and below: SQLite 3.40 takes the offset of a scalar subquery with DISTINCT for 0.
            too_many = "SELECT DISTINCT seq FROM acks WHERE model = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
            for last in sql.execute(too_many, (self.model, self.settings.acks_max)).fetchall():
                sql.execute("DELETE FROM acks WHERE model = ? AND seq <= ?", (self.model, *last))

    def acks(self, seq: int) -> list[Ack]:
        """See `Registry`."""
        found = self._rows("SELECT data FROM acks WHERE model = ? AND seq = ?", seq)
        return by_name([decode(data, Ack, self.url) for data in found])

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        """See `Registry`."""
        return self._poll(lambda: self.acks(seq), lambda found: len(found) >= count, timeout_s)

    def note(self, note: Note) -> None:
        """See `Registry`."""
        with self._writing() as sql:
            row = (self.model, note.wall_ms, note.seq, encode(note))
            sql.execute("INSERT OR IGNORE INTO notes VALUES (?, ?, ?, ?)", row)
            too_many = f"SELECT wall_ms, seq, data FROM notes WHERE model = ? {_NEWEST} LIMIT 1 OFFSET ?"
            for last in sql.execute(too_many, (self.model, self.settings.notes_max)).fetchall():
                old = "DELETE FROM notes WHERE model = ? AND (wall_ms, seq, data) <= (?, ?, ?)"
                sql.execute(old, (self.model, *last))

    def notes(self, count_max: int) -> list[Note]:
        """See `Registry`."""
        newest = f"SELECT data FROM notes WHERE model = ? {_NEWEST} LIMIT ?"
        return [decode(data, Note, self.url) for data in self._rows(newest, max(0, count_max))[::-1]]

    def clear(self) -> None:
        """See `Registry`."""
        with self._writing() as sql:
            for table in ("pointers", "versions", "nodes", "acks", "notes"):
                sql.execute(f"DELETE FROM {table} WHERE model = ?", (self.model,))

    def close(self) -> None:
        """See `Registry`."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            if link.pid == os.getpid():
                link.sql.close()

    @property
    def _ttl_ms(self) -> int:
        return max(1, round(self.settings.node_ttl_s * 1_000))

    def _newer(self, seq: int | None) -> Pointer | None:
        """The copy of the pointer, if it is after a move; of any move for None."""
        newer = "SELECT data FROM pointers WHERE model = ?1 AND (?2 IS NULL OR seq > ?2)"
        found = self._rows(newer, seq)
        return decode_pointer(found[0], self.url) if found else None

    def _poll(self, look: Callable[[], Found], is_enough: Callable[[Found], bool], timeout_s: float) -> Found:
        """Look each `poll_ms`, until it is enough or the time is over."""
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            found = look()
            left_s = until_s - self._clock.monotonic_s()
            if is_enough(found) or left_s <= 0:
                return found
            self._clock.sleep(min(self.settings.poll_ms / 1_000, left_s))

    def _rows(self, query: str, *values: int | None) -> list[bytes]:
        with self._linked() as link:
            found = link.sql.execute(query, (self.model, *values)).fetchall()
        return [data if isinstance(data, bytes) else str(data).encode() for (data,) in found]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._linked() as link, link.writing() as sql:
            yield sql

    @contextmanager
    def _linked(self) -> Iterator[_Link]:
        """A connection for one call; any trouble with it is the registry's."""
        link: _Link | None = None
        try:
            link = self._take() or self._open()
            yield link
        except (sqlite3.Error, OSError) as error:
            if link is not None:
                link.sql.close()
            message = f"the registry at {self.url} does not answer: {error}"
            help = "check the file, its permissions and its disk, or move it away: it is then rebuilt from the store"
            raise RegistryUnreachable(message, help=help) from None
        except BaseException:
            self._give(link)
            raise
        self._give(link)

    def _take(self) -> _Link | None:
        """A connection that is there, if its file still is the registry's."""
        file = _identity(self._path)
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
                if link is not None and link.pid != os.getpid():
                    self._foreign.append(link)
                    continue
            if link is None or link.file == file:
                return link
            link.sql.close()

    def _open(self) -> _Link:
        until_s = time.monotonic() + self.settings.reach_s
        link = _Link(self._path, self.settings)
        try:
            link.prepare(self.url, until_s)
        except BaseException:
            link.sql.close()
            raise
        return link

    def _give(self, link: _Link | None) -> None:
        if link is None:
            return
        with self._lock:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append(link)
                return
        link.sql.close()


def _make(path: Path) -> None:
    """Make the file unless it is there, for this user alone; SQLite gives its other files the same rights.

    A file that is there is not opened: closing any descriptor of it would end all locks that this process has on it.
    Another process would find none, take itself for the last, and remove the log that is being written here.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _MAKING, suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
