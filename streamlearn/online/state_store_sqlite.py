"""A store of feature states in a SQLite file, for one machine."""

# ruff: noqa: D102 - the methods inherit the docstrings of `StateStore`

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import StatesUnreachable, UsageError
from streamlearn.online.state_store import Standing, StateGroup, StatePlace, StateStore, Written, new_run
from streamlearn.settings.features import FeatureSettings

__all__ = ["SqliteStateStore"]

_SCHEMA = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS states (grp TEXT, key INTEGER, data BLOB, until_ms INTEGER, PRIMARY KEY (grp, key))
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS states_until ON states (until_ms);
CREATE TABLE IF NOT EXISTS standings (
    grp TEXT, partition INTEGER, run INTEGER, position INTEGER, seen_from INTEGER, newest_ms INTEGER, topic_id TEXT,
    PRIMARY KEY (grp, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (base TEXT PRIMARY KEY, epoch INTEGER, partitions INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS filling (base TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_CLAIM = """
INSERT INTO standings VALUES (?, ?, ?, 0, 0, 0, '') ON CONFLICT DO UPDATE SET run = excluded.run
RETURNING run, position, seen_from, newest_ms, topic_id
"""
_STANDING = "SELECT run, position, seen_from, newest_ms, topic_id FROM standings WHERE grp = ? AND partition = ?"
_ADVANCE = """
UPDATE standings SET position = ?, seen_from = ?, newest_ms = ?, topic_id = ?
WHERE grp = ? AND partition = ?
"""
# Expired states that one write removes, so that no write takes long.
_EXPIRED_MAX = 1_000
# Parameters of one statement that every SQLite accepts.
_KEYS_MAX = 500


class SqliteStateStore(StateStore):
    """States in a file, which is created with its folder at first use."""

    def __init__(self, url: str, settings: FeatureSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(url)
        path = url.removeprefix("sqlite://")
        if not url.startswith("sqlite:///") or path.endswith("/"):
            message = "the SQLite URL of features.store names no file"
            raise UsageError(
                message, help="write sqlite:// and the whole path: sqlite:///var/lib/streamlearn/features.db"
            )
        self._path, self._settings, self._clock = Path(path), settings, clock
        self._sql: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def claim(self, group: StateGroup, partition: int) -> Standing:
        with self._transaction() as sql:
            return Standing(*sql.execute(_CLAIM, (group.name, partition, new_run())).fetchone())

    def standing(self, group: StateGroup, partition: int) -> Standing | None:
        with self._connection() as sql:
            row = sql.execute(_STANDING, (group.name, partition)).fetchone()
            return None if row is None else Standing(*row)

    def read(self, places: Sequence[StatePlace]) -> list[bytes | None]:
        found: dict[tuple[str, int], bytes] = {}
        wanted = [(place.group.name, _signed(place.key)) for place in places]
        now_ms = self._clock.wall_ms()
        with self._connection() as sql:
            for name in dict.fromkeys(name for name, _ in wanted):
                keys = [key for of, key in wanted if of == name]
                for begin in range(0, len(keys), _KEYS_MAX):
                    part = keys[begin : begin + _KEYS_MAX]
                    marks = ",".join("?" * len(part))
                    query = f"SELECT key, data FROM states WHERE grp = ? AND until_ms > ? AND key IN ({marks})"
                    rows = sql.execute(query, (name, now_ms, *part))
                    found.update({(name, key): data for key, data in rows})
        return [found.get(one) for one in wanted]

    def remove(self, group: StateGroup, partition: int, keys: Sequence[int]) -> int:
        with self._transaction() as sql:
            query = "DELETE FROM states WHERE grp = ? AND key = ?"
            return sum(sql.execute(query, (group.name, _signed(key))).rowcount for key in keys)

    def switch(self, group: StateGroup) -> None:
        with self._transaction() as sql:
            where = (group.base, group.epoch, group.partitions)
            sql.execute("INSERT OR REPLACE INTO groups VALUES (?, ?, ?)", where)
            fills = "INSERT OR IGNORE INTO filling VALUES (?)" if group.fills else "DELETE FROM filling WHERE base = ?"
            sql.execute(fills, (group.base,))

    def filled(self, group: StateGroup) -> None:
        with self._transaction() as sql:
            query = "DELETE FROM filling WHERE base IN (SELECT base FROM groups WHERE base = ? AND epoch = ?)"
            sql.execute(query, (group.base, group.epoch))

    def _current(self, base: str) -> tuple[int, int, bool] | None:
        with self._connection() as sql:
            query = "SELECT epoch, partitions, base IN (SELECT base FROM filling) FROM groups WHERE base = ?"
            found = sql.execute(query, (base,)).fetchone()
            return None if found is None else (int(found[0]), int(found[1]), bool(found[2]))

    def drop(self, group: StateGroup) -> None:
        with self._transaction() as sql:
            for table in ("states", "standings"):
                sql.execute(f"DELETE FROM {table} WHERE grp = ?", (group.name,))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._sql is not None:
                self._sql.close()
                self._sql = None

    def _write(
        self,
        group: StateGroup,
        partition: int,
        moved: tuple[Standing, Standing],
        states: Mapping[int, bytes],
        keep_ms: int,
    ) -> Written:
        after, now_ms = moved[1], self._clock.wall_ms()
        rows = [(group.name, _signed(key), data, now_ms + keep_ms) for key, data in states.items()]
        with self._transaction() as sql:
            held = sql.execute(_STANDING, (group.name, partition)).fetchone()
            if held is None or (held[0] == after.run and Standing(*held) not in moved):
                return Written.LOST
            if held[0] != after.run:
                return Written.OVER
            where = (after.position, after.seen_from, after.newest_ms, after.topic_id)
            sql.execute(_ADVANCE, (*where, group.name, partition))
            sql.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)", rows)
            expired = "SELECT grp, key FROM states WHERE until_ms <= ? LIMIT ?"
            sql.execute(f"DELETE FROM states WHERE (grp, key) IN ({expired})", (now_ms, _EXPIRED_MAX))
        return Written.DONE

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                yield self._opened()
        except (sqlite3.Error, OSError) as error:
            message = f"the feature states at {self.url} are away: {error}"
            raise StatesUnreachable(message, help="see why the file cannot be used; they can be rebuilt") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as sql:
            sql.execute("BEGIN IMMEDIATE")
            try:
                yield sql
            except BaseException:
                sql.execute("ROLLBACK")
                raise
            sql.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        if self._sql is not None:
            return self._sql
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sql = sqlite3.connect(self._path, timeout=self._settings.reach_s, isolation_level=None, check_same_thread=False)
        try:
            sql.execute("PRAGMA journal_mode = WAL")
            sql.execute("PRAGMA synchronous = NORMAL")
            schema = int(sql.execute("PRAGMA user_version").fetchone()[0])
            if schema not in (0, _SCHEMA):
                message = f"the feature states at {self.url} have schema {schema}, and this release uses {_SCHEMA}"
                raise StatesUnreachable(message, help="move the file away: states are then folded again")
            sql.executescript(_TABLES)
            sql.execute(f"PRAGMA user_version = {_SCHEMA}")
        except BaseException:
            sql.close()
            raise
        self._sql = sql
        return sql


def _signed(key: int) -> int:
    """Return a key as SQLite's integers hold it."""
    return key - (1 << 64) if key >= 1 << 63 else key
