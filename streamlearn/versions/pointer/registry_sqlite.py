"""SqliteRegistry: the registry for one machine, in a file that processes share. Waiting is polling."""

# ruff: noqa: D102 - the methods inherit the docstrings of `Registry`

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
from streamlearn.versions.pointer.registry import (
    NODES_MAX,
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
# Idle connections that are kept; more are closed.
_IDLE_MAX = 8
_PAUSE_S = 0.005
# Longer than the steps of a file system's clock: writes within one step have the same time.
_INSTANT_NS = 100_000_000
# No thread of this process may connect while the file is made and closed.
_MAKING = threading.Lock()

Result = TypeVar("Result")


class _Link:
    """A connection, and the identity of its file: a file that was moved away is no longer the registry."""

    def __init__(self, path: Path, settings: RegistrySettings) -> None:
        _make(path)
        self.file = _identity(path)
        self.sql = sqlite3.connect(path, timeout=settings.reach_s, isolation_level=None, check_same_thread=False)
        # Text that is not UTF-8 is then found when it is decoded, as a defect of the record.
        self.sql.text_factory = bytes
        self.sql.execute("PRAGMA synchronous = NORMAL")
        self.pid = os.getpid()

    def prepare(self, url: str, until_s: float) -> None:
        """Create the tables unless they exist, and check their schema."""
        if self._check(url):
            return
        # Other processes may do the same now, and SQLite itself does not wait for them here.
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
        """Return whether the file is a registry, or False if it is empty; refuse any other file."""
        # In this order: the schema number is written in one transaction with the tables.
        tables = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        schema = int(self.sql.execute("PRAGMA user_version").fetchone()[0])
        if schema == _SCHEMA:
            return True
        if schema or tables:
            message = f"the registry at {url} has schema {schema} and {tables} tables; "
            message += f"this release uses schema {_SCHEMA}"
            help = "use the release that created it, or move the file away: it is then rebuilt from the store"
            raise RegistryUnreachable(message, help=help)
        return False

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction."""
        self.sql.execute("BEGIN IMMEDIATE")
        try:
            yield self.sql
        except BaseException:
            self.sql.execute("ROLLBACK")
            raise
        self.sql.execute("COMMIT")


class SqliteRegistry(Registry):
    """A registry in a SQLite file, which several models may share. File and folder are created at first use."""

    def __init__(
        self, url: str, model: str, settings: RegistrySettings | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(url, model, settings or RegistrySettings())
        path = url.removeprefix("sqlite://")
        if not url.startswith("sqlite:///") or path.endswith("/"):
            # Not repeated, because it may contain a password.
            message = "the SQLite URL of the registry names no file"
            help = "write sqlite:// and the whole path: sqlite:///var/lib/streamlearn/registry.db"
            raise UsageError(message, help=help)
        self._path, self._log, self._clock = Path(path), Path(f"{path}-wal"), clock
        self._idle: list[_Link] = []
        # Connections from before a fork: closing them here would break the locks of the parent process.
        self._foreign: list[_Link] = []
        self._lock = threading.Lock()

    def announce(self, pointer: Pointer) -> bool:
        with self._writing() as sql:
            return sql.execute(_ANNOUNCE, (self.model, pointer.seq, encode(pointer))).rowcount > 0

    def pointer(self) -> Pointer | None:
        return self._newer(None)

    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        return self._poll(lambda: self._newer(seq), lambda pointer: pointer is not None, timeout_s)

    def put_versions(self, known: Iterable[Known]) -> None:
        rows = [(self.model, entry.version, encode(entry)) for entry in known]
        with self._writing() as sql:
            sql.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", rows)

    def versions(self) -> list[Known]:
        rows = self._rows("SELECT data FROM versions WHERE model = ? ORDER BY version")
        return [decode(data, Known, self.url) for data in rows]

    def drop_versions(self, versions: Iterable[int]) -> None:
        rows = [(self.model, version) for version in versions]
        with self._writing() as sql:
            sql.executemany("DELETE FROM versions WHERE model = ? AND version = ?", rows)

    def beat(self, node: Node) -> None:
        with self._writing() as sql:
            now_ms = self._clock.wall_ms()
            row = (self.model, node.boot_id, now_ms, encode(node))
            sql.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", row)
            sql.execute("DELETE FROM nodes WHERE abs(? - heard_ms) >= ?", (now_ms, self._silent_ms))

    def leave(self, boot_id: str) -> None:
        with self._writing() as sql:
            sql.execute("DELETE FROM nodes WHERE model = ? AND boot_id = ?", (self.model, boot_id))

    def nodes(self) -> list[Node]:
        # A heartbeat in the future came before the clock was set back.
        query = "SELECT data FROM nodes WHERE model = ? AND abs(? - heard_ms) < ? LIMIT ?"
        return decode_nodes(self._rows(query, self._clock.wall_ms(), self._ttl_ms, NODES_MAX + 1), self.url)

    def silent(self) -> list[Node]:
        query = "SELECT data FROM nodes WHERE model = ?1 AND ?2 - heard_ms >= ?3 AND ?2 - heard_ms < ?4 LIMIT ?5"
        bounds = self._clock.wall_ms(), self._ttl_ms, self._silent_ms, NODES_MAX + 1
        return decode_nodes(self._rows(query, *bounds), self.url)

    def ack(self, ack: Ack) -> None:
        with self._writing() as sql:
            sql.execute(
                "INSERT OR IGNORE INTO acks SELECT ?1, ?2, ?3, ?4"
                " WHERE (SELECT count(*) FROM acks WHERE model = ?1 AND seq = ?2) < ?5",
                (self.model, ack.seq, ack.boot_id, encode(ack), self.settings.move_acks_max),
            )
            # Two steps, here and below: SQLite 3.40 ignores the offset of a scalar subquery with DISTINCT.
            too_many = "SELECT DISTINCT seq FROM acks WHERE model = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
            for last in sql.execute(too_many, (self.model, self.settings.acks_max)).fetchall():
                sql.execute("DELETE FROM acks WHERE model = ? AND seq <= ?", (self.model, *last))

    def acks(self, seq: int) -> list[Ack]:
        rows = self._rows("SELECT data FROM acks WHERE model = ? AND seq = ?", seq)
        return by_name([decode(data, Ack, self.url) for data in rows])

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        return self._poll(lambda: self.acks(seq), lambda acks: len(acks) >= count, timeout_s)

    def note(self, note: Note) -> None:
        with self._writing() as sql:
            row = (self.model, note.wall_ms, note.seq, encode(note))
            sql.execute("INSERT OR IGNORE INTO notes VALUES (?, ?, ?, ?)", row)
            too_many = f"SELECT wall_ms, seq, data FROM notes WHERE model = ? {_NEWEST} LIMIT 1 OFFSET ?"
            for last in sql.execute(too_many, (self.model, self.settings.notes_max)).fetchall():
                old = "DELETE FROM notes WHERE model = ? AND (wall_ms, seq, data) <= (?, ?, ?)"
                sql.execute(old, (self.model, *last))

    def notes(self, count_max: int) -> list[Note]:
        newest = f"SELECT data FROM notes WHERE model = ? {_NEWEST} LIMIT ?"
        return [decode(data, Note, self.url) for data in self._rows(newest, max(0, count_max))[::-1]]

    def clear(self) -> None:
        with self._writing() as sql:
            for table in ("pointers", "versions", "nodes", "acks", "notes"):
                sql.execute(f"DELETE FROM {table} WHERE model = ?", (self.model,))

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            if link.pid == os.getpid():
                link.sql.close()

    def _newer(self, seq: int | None) -> Pointer | None:
        """Return the copy of the pointer if it is newer than a move; or any copy for None."""
        rows = self._rows("SELECT data FROM pointers WHERE model = ?1 AND (?2 IS NULL OR seq > ?2)", seq)
        copy = decode_pointer(rows[0], self.url) if rows else None
        # The column may be wrong; the record has a checksum.
        return copy if copy is not None and (seq is None or copy.seq > seq) else None

    def _poll(self, look: Callable[[], Result], is_enough: Callable[[Result], bool], timeout_s: float) -> Result:
        """Look every `poll_ms`, if the file was written since, until the result is enough or the timeout is over."""
        until_s, looked = self._clock.monotonic_s() + timeout_s, None
        while True:
            written = self._last_write()
            if written is None or written != looked:
                result, looked = look(), written
            left_s = until_s - self._clock.monotonic_s()
            if is_enough(result) or left_s <= 0:
                return result
            self._clock.sleep(min(self.settings.poll_ms / 1_000, left_s))

    def _last_write(self) -> tuple[int, ...] | None:
        """Return what the next write will change; None if it might not, because the last one was just now."""
        try:
            log, file = self._log.stat(), self._path.stat()  # writes go to the log
        except OSError:
            return None
        if abs(time.time_ns() - log.st_mtime_ns) < _INSTANT_NS:
            return None
        return (log.st_ino, log.st_size, log.st_mtime_ns, file.st_ino)

    def _rows(self, query: str, *values: int | None) -> list[bytes]:
        with self._linked() as link:
            rows = link.sql.execute(query, (self.model, *values)).fetchall()
        return [data if isinstance(data, bytes) else str(data).encode() for (data,) in rows]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._linked() as link, link.writing() as sql:
            yield sql

    @contextmanager
    def _linked(self) -> Iterator[_Link]:
        """Lend a connection for one call, and turn its errors into ours."""
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
        """Return an idle connection whose file is still the registry."""
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
    """Create the file if it is missing, for this user only; SQLite gives its other files the same permissions.

    An existing file is not opened, because closing any descriptor of it would release all locks of this process.
    Another process would then believe that it is the last, and remove the log that this process writes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _MAKING, suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino
