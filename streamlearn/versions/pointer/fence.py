"""Fence: numbers of runs, each taken once. A trainer takes one when it starts; those of before may publish no more."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken, RunOver
from streamlearn.versions.format.record import Record, encode_record
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import RUN_MAX, SHAPES, model_folder, parse_folder, shape_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["Fence", "FenceRecord"]

_HELP = "restart the trainer: it takes the next run number, and ignores older records from then on"


class FenceRecord(Record, frozen=True, kw_only=True):
    """That a run began.

    Attributes:
        run: Its number.
        by: Whose run it is, such as host and process.
        wall_ms: When.
    """

    run: Annotated[int, Meta(ge=1, le=RUN_MAX)]
    by: Annotated[str, Meta(max_length=200)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


class Fence:
    """The runs of a model.

    Args:
        store: Where its versions are.
        model: Which model.
        clock: When a run begins.

    Examples:
        >>> from streamlearn.versions import open_store
        >>> from streamlearn.versions.pointer.fence import Fence
        >>> fence = Fence(open_store("memory://fence-example"), "ctr")
        >>> fence.take("host-1"), fence.take("host-2")
        (1, 2)
        >>> fence.check(2)
    """

    def __init__(self, store: Store, model: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store, self._model, self._clock = store, model, clock
        self._records = Sequence(store, model_folder(model, "runs"), FenceRecord, help=_HELP)

    def take(self, by: str) -> int:
        """Begin a run: its number is above that of all others, and nobody else has it."""
        while True:
            run = max(self.newest(), self._written()) + 1
            record = FenceRecord(run=run, by=by[:200], wall_ms=max(0, self._clock.wall_ms()))
            try:
                self._store.create(f"{self._records.folder}/{run:012d}.json", encode_record(record))
            except FileTaken:
                continue
            return run

    def newest(self) -> int:
        """The newest run; 0 before the first."""
        # Listed, and not looked for one by one: a run that began when records were gone is above a gap.
        return max(self._records.numbers(), default=0)

    def check(self, run: int) -> None:
        """That no newer run has taken over.

        Raises:
            RunOver: One has.
        """
        newest = self.newest()
        if newest > run:
            record = self._records.read(newest)
            message = f"run {run} of {self._model!r} is over: run {newest} ({record.by or 'unnamed'}) has taken over"
            raise RunOver(message, help="end this trainer; the newer one continues from the newest committed version")

    def _written(self) -> int:
        """The newest run that versions are of, should its fence be gone."""
        found = [
            parse_folder(self._model, shape, entry.name)
            for shape in SHAPES
            for entry in self._store.entries(shape_folder(self._model, shape))
        ]
        return max((one.run for one in found if one is not None), default=0)
