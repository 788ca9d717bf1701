"""The demo's tables: a row for every value of every slot that was shown, in versions, as events are read.

There is no model yet, so rows learn from a gradient of ones: what is shown is what tables hold and what versions
cost, not what anybody likes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import StreamlearnError
from streamlearn.features import keys_of
from streamlearn.native import native
from streamlearn.table import Adagrad, TableOptions, TableSet

if TYPE_CHECKING:
    from streamlearn.events import EventColumns
    from streamlearn.features import FeatureSpec, Slot

__all__ = ["DemoTables"]

_ROWS_MAX = 20_000_000
_CUT_IMPRESSIONS = 20_000
_VERSIONS_KEPT = 3
_MOVES = 100


class DemoTables:
    """Tables filled from impressions, cut into a version every so many of them.

    Args:
        features: The application's.

    Attributes:
        seconds: How long it took so far.
    """

    def __init__(self, features: FeatureSpec) -> None:
        self._slots = features.slots
        self.tables = TableSet(
            [TableOptions(spec, rows_max=_ROWS_MAX, optimizer=Adagrad()) for spec in features.tables]
        )
        self._version = 1
        self._since_cut = 0
        self._pushed = 0
        self.seconds = 0.0
        self.tables.seal(1)
        self.tables.commit(1)
        self.tables.activate(1)

    def add(self, shown: EventColumns) -> None:
        """Let the rows of everything in some impressions learn."""
        begin = time.perf_counter()
        times = shown.columns["event_time_ms"]
        for slot in self._slots if len(shown) else ():
            keys = _keys(slot, shown)
            table = self.tables[slot.table]
            table.push(keys, np.ones((len(keys), slot.dim), np.float32), now_ms=int(times.max()))
            self._pushed += len(keys)
        self._since_cut += len(shown)
        if self._since_cut >= _CUT_IMPRESSIONS:
            self._cut()
        self.seconds += time.perf_counter() - begin

    def _cut(self) -> None:
        """Close a version, follow it, and keep the last few."""
        self._since_cut = 0
        self._version += 1
        self.tables.seal(self._version)
        self.tables.commit(self._version)
        self.tables.activate(self._version)
        for version in self.tables.retained[:-_VERSIONS_KEPT]:
            self.tables.retire(version)

    def facts(self) -> dict[str, Any]:
        """What they hold, by table, and how long it takes to follow an older version and the newest again."""
        facts: dict[str, Any] = {"keys learned/s": round(self._pushed / max(self.seconds, 1e-9))}
        for name, table in self.tables.tables.items():
            stats = table.stats()
            facts |= {
                f"table {name}: rows": stats.keys,
                f"table {name}: bytes": stats.bytes,
                f"table {name}: images of {len(self.tables.retained)} versions": stats.images,
            }
        return facts | {"versions cut": self._version, "back to an older version, us": round(self._move_us(), 1)}

    def _move_us(self) -> float:
        """Microseconds to follow another version; the row of a key must be that version's each time."""
        oldest, newest = self.tables.retained[0], self.tables.retained[-1]
        taken = []
        for number in range(_MOVES):
            version = (oldest, newest)[number % 2]
            begin = time.perf_counter()
            self.tables.activate(version)
            taken.append(time.perf_counter() - begin)
        for version in (oldest, newest):
            self._check(version)
        return float(np.median(taken)) * 1e6

    def _check(self, version: int) -> None:
        """What the active version reads is what an export of that version holds."""
        self.tables.activate(version)
        for changes in self.tables.changed(None, version, parts=native.TABLE_PARTS):
            found = self.tables[changes.table].lookup(changes.keys, at="active")
            if found.tobytes() != changes.rows.tobytes():
                message = f"rows of table {changes.table} are not those of version {version}"
                raise StreamlearnError(message, help="this is a defect: please report it with this output")


def _keys(slot: Slot, shown: EventColumns) -> npt.NDArray[np.uint64]:
    """The keys of a slot's values, all rows' one after another."""
    path = f"{'user' if slot.side == 'user' else 'items'}.{slot.name}"
    offsets = shown.columns[f"{path}$"] if slot.value == "str" else None
    return keys_of(slot, shown.columns[path], offsets=offsets)
