"""A model for tests of the parameter server: its tables, its versions, and the same tables in this process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.features import TableSpec
from streamlearn.ps import PsClient
from streamlearn.table import Adagrad, Admission, Expiry, TableOptions, TableSet, Upkeep
from streamlearn.table.options import RowwiseAdagrad
from streamlearn.versions import Committed, Cut, Head, Store, VersionRef, VersionWriter, table_record

__all__ = ["EXPIRIES", "KEYS", "MODEL", "OPTIONS", "Twin", "committed", "head"]

MODEL = "ctr"
OPTIONS = (
    TableOptions(TableSpec("main", 8, 0.05), rows_max=200_000, optimizer=Adagrad(rate=0.1), seed=3, tick_ms=1_000),
    TableOptions(
        TableSpec("side", 3, 0.5),
        rows_max=200_000,
        optimizer=RowwiseAdagrad(rate=0.5),
        admission=Admission(window_ms=1_000_000, width_counters=1_024),
        tick_ms=1_000,
    ),
)
EXPIRIES = {"main": Expiry(idle_ms=30_000), "side": Expiry(idle_ms=20_000)}
# Of all parts, so that every shard has some.
KEYS = np.random.default_rng(5).integers(0, 1 << 64, 4_000, np.uint64, endpoint=False)
_TABLES = TableSet(OPTIONS)


def head(version: int, parent: VersionRef | None, run: int = 1) -> Head:
    """What is known of a version before its files are written."""
    return Head(
        model=MODEL,
        run=run,
        version=version,
        kind="base" if parent is None else "delta",
        parent=parent,
        fingerprint="features",
        windows="windows",
        tables=tuple(table_record(_TABLES, name) for name in _TABLES.tables),
    )


def committed(client: PsClient, store: Store, version: int, parent: VersionRef | None) -> Committed:
    """Cut a version, as a publisher does."""
    client.seal(version)
    said = head(version, parent)
    done = VersionWriter(store, said).finish(Cut(), client.export(said))
    client.commit(done.ref)
    return done


class Twin:
    """The same tables in this process, which learn the same: what shards must come to."""

    def __init__(self) -> None:
        self.tables = TableSet(OPTIONS)
        self.now_ms = 10_000
        self._known: dict[str, Upkeep] = {}

    def step(self, client: PsClient | None, seed: int) -> None:
        """Push the same to both, with repeated keys, counts and admission."""
        rng = np.random.default_rng(seed)
        self.now_ms += 1_000
        for name, table in self.tables.tables.items():
            keys = rng.choice(KEYS, 1_500)
            gradients = rng.standard_normal((len(keys), table.dim), np.float32)
            counts = rng.integers(1, 4, len(keys)).astype(np.uint32)
            admit = [(700, 3), (len(keys), 1)] if table.options.admission else []
            given = {"now_ms": self.now_ms, "counts": counts, "admit": admit, "rate_scale": 0.5}
            done = table.push(keys, gradients, **given)  # type: ignore[arg-type]
            if client is not None:
                assert client.push(name, keys, gradients, **given) == done  # type: ignore[arg-type]

    def check(self, client: PsClient, *, at: int | None = None) -> None:
        """Every row of both is the same to the bit."""
        for name, table in self.tables.tables.items():
            expected = table.lookup(KEYS, at="newest" if at is None else at)
            found = client.pull(name, KEYS, at="newest" if at is None else at)
            assert np.array_equal(_bits(found), _bits(expected)), name

    def keep(self, version: int) -> None:
        """Seal and commit, and remember what tables know beside their rows."""
        self.tables.seal(version)
        self._known = {name: table.upkeep() for name, table in self.tables.tables.items()}
        self.tables.commit(version)

    def go_back(self) -> None:
        """Drop what was written since `keep`."""
        self.tables.discard()
        for name, known in self._known.items():
            self.tables[name].restore(known)


def _bits(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return rows.view(np.uint32)
