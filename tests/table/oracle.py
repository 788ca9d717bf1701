"""What a set of tables is to hold: dictionaries by version, in plain Python. It knows no part, line or image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.table import Adagrad, Expiry, TableOptions
from tests.table import optimizer_reference as reference

__all__ = ["Cell", "Cells", "Oracle", "Snapshot", "initial_rows", "keys_of_one_part"]

Floats: TypeAlias = npt.NDArray[np.float32]
Uint64s: TypeAlias = npt.NDArray[np.uint64]
_TICKS = 1 << 24


@dataclass(frozen=True, eq=False)
class Cell:
    """What a key has."""

    row: Floats
    state: Floats
    tick: int = 0
    count: int = 0


Cells: TypeAlias = dict[int, Cell]


@dataclass
class Snapshot:
    """All tables as one version has them, and the keys it wrote."""

    cells: dict[str, Cells]
    touched: dict[str, set[int]] = field(default_factory=dict)

    def copy(self) -> Snapshot:
        return Snapshot({name: dict(cells) for name, cells in self.cells.items()}, {name: set() for name in self.cells})


class Oracle:
    """Tables with Adagrad or none, and their versions."""

    def __init__(self, options: Sequence[TableOptions]) -> None:
        self.options = {one.spec.name: one for one in options}
        self.open = Snapshot({name: {} for name in self.options}).copy()
        self.sealed: tuple[int, Snapshot] | None = None
        self.kept: dict[int, Snapshot] = {}
        self.active: int | None = None
        self.is_written = False

    @property
    def newest(self) -> int | None:
        return max(self.kept, default=None)

    def version(self, number: int) -> Snapshot:
        """A version that is kept or sealed."""
        return self.sealed[1] if self.sealed and self.sealed[0] == number else self.kept[number]

    def versions(self) -> list[int]:
        """Versions that can be pinned, oldest first."""
        return [*self.kept, *([self.sealed[0]] if self.sealed else [])]

    def give(self, table: str, key: int, cell: Cell | None) -> None:
        """Give a key what it has from now on; None takes it away."""
        cells = self.open.cells[table]
        if cell is None and key not in cells:
            return
        self.open.touched[table].add(key)
        if cell is None:
            del cells[key]
        else:
            cells[key] = cell

    def begun(self, table: str) -> Floats:
        """The state of a row that has learned nothing."""
        options = self.options[table]
        has = isinstance(options.optimizer, Adagrad)
        return np.full(options.spec.dim if has else 0, 0.1, np.float32)

    def put(self, table: str, keys: Iterable[int], rows: Floats) -> None:
        self.is_written = True
        for key, row in zip(keys, rows, strict=True):
            had = self.open.cells[table].get(key)
            tick, count = (had.tick, had.count) if had else (0, 0)
            self.give(table, key, Cell(row, self.begun(table), tick, count))

    def push(self, table: str, keys: Sequence[int], gradients: Floats, now_ms: int) -> None:
        self.is_written = True
        options = self.options[table]
        assert isinstance(options.optimizer, Adagrad)
        for key in dict.fromkeys(keys):
            mine = [gradient for other, gradient in zip(keys, gradients, strict=True) if other == key]
            total = mine[0].copy()
            for gradient in mine[1:]:
                total = total + gradient
            before = self.open.cells[table].get(key) or Cell(self.initial(table, [key])[0], self.begun(table))
            rate = reference.scaled(options.optimizer.rate)
            row, sums = reference.adagrad(before.row, before.state, total, rate, options.optimizer.epsilon)
            tick = now_ms // options.tick_ms % _TICKS
            self.give(table, key, Cell(row, sums, tick, min(before.count + len(mine), 255)))

    def remove(self, table: str, keys: Iterable[int]) -> int:
        self.is_written = True
        there = {key for key in keys if key in self.open.cells[table]}
        for key in there:
            self.give(table, key, None)
        return len(there)

    def expire(self, table: str, expiry: Expiry, now_ms: int) -> tuple[int, int]:
        """How many keys are idle, and how many of the others rare, of all there are; they leave."""
        self.is_written = True
        tick_ms = self.options[table].tick_ms
        idle, rare = [], []
        for key, cell in self.open.cells[table].items():
            if (cell.tick, cell.count) == (0, 0):
                continue  # it was never used
            age_ms = (now_ms // tick_ms - cell.tick) % _TICKS * tick_ms
            if expiry.idle_ms is not None and age_ms > expiry.idle_ms:
                idle.append(key)
            elif cell.count < expiry.count_min and age_ms > expiry.rare_idle_ms:
                rare.append(key)
        for key in idle + rare:
            self.give(table, key, None)
        return len(idle), len(rare)

    def seal(self, number: int) -> None:
        self.sealed = (number, Snapshot(self.open.copy().cells, self.open.touched))
        self.open, self.is_written = self.open.copy(), False

    def commit(self) -> None:
        assert self.sealed is not None
        self.kept[self.sealed[0]] = self.sealed[1]
        self.sealed = None

    def discard(self) -> None:
        base = self.kept[self.newest] if self.newest is not None else Snapshot({name: {} for name in self.options})
        self.open, self.sealed, self.is_written = base.copy(), None, False

    def retire(self, number: int) -> None:
        gone = self.kept.pop(number)
        following = self.kept[min(other for other in self.kept if other > number)]
        for name, keys in gone.touched.items():
            following.touched[name] = following.touched[name] | keys

    def changed(self, table: str, since: int | None, upto: int) -> tuple[Cells, set[int]]:
        """The cells that an export gives, and the keys that it says are gone."""
        later = self.version(upto).cells[table]
        if since is None:
            return later, set()
        between = [self.version(one) for one in self.versions() if since < one <= upto]
        touched = {key for one in between for key in one.touched[table]}
        earlier = self.version(since).cells[table]
        return {key: later[key] for key in touched if key in later}, (touched & set(earlier)) - set(later)

    def initial(self, table: str, keys: Sequence[int]) -> Floats:
        options = self.options[table]
        spec = options.spec
        return initial_rows(np.array(keys, np.uint64), spec.dim, spec.initial_range, options.seed)

    def rows(self, table: str, cells: Mapping[int, Cell], keys: Sequence[int]) -> Floats:
        """What a lookup gives."""
        rows = self.initial(table, keys)
        for at, key in enumerate(keys):
            if key in cells:
                rows[at] = cells[key].row
        return rows


def _draw(seed: Uint64s, at: Uint64s) -> Uint64s:
    value = seed + (at + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    drawn: Uint64s = value ^ (value >> np.uint64(31))
    return drawn


def initial_rows(keys: Uint64s, dim: int, initial_range: float, seed: int) -> Floats:
    """Rows of keys that were never stored: SplitMix64 of the key, two numbers of 24 bits a draw."""
    seeds = _draw(np.full(len(keys), seed, np.uint64), keys)
    draws = _draw(seeds[:, None], np.arange((dim + 1) // 2, dtype=np.uint64)[None, :])
    halves = np.stack([draws & np.uint64(0xFFFF_FFFF), draws >> np.uint64(32)], axis=2).reshape(len(keys), -1)
    numbers = ((halves[:, :dim] >> np.uint64(8)).astype(np.int64) - (1 << 23)).astype(np.float32)
    return numbers * np.float32(np.float32(initial_range) * np.float32(2**-23))


def _mix(keys: Uint64s) -> Uint64s:
    hashes = (keys ^ (keys >> np.uint64(33))) * np.uint64(0xFF51_AFD7_ED55_8CCD)
    hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xC4CE_B9FE_1A85_EC53)
    return hashes ^ (hashes >> np.uint64(33))


def keys_of_one_part(count: int, part: int = 0) -> Uint64s:
    """Keys that a table keeps side by side, so that few of them fill its lines."""
    tried = np.arange(count * 2000 + 10_000, dtype=np.uint64)
    found: Uint64s = tried[_mix(tried) >> np.uint64(54) == part][:count]
    return found
