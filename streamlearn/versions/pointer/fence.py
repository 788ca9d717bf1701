"""Fence: the numbers of runs, each taken once. A trainer takes one when it starts; older runs may no longer publish."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken, RunOver
from streamlearn.versions.format.record import Record, encode_record
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import RUN_MAX, model_folder, version_folders
from streamlearn.versions.store.sequence import Sequence

__all__ = ["Fence", "FenceRecord"]

_HELP = "restart the trainer: it takes the next run number, and ignores older records from then on"


class FenceRecord(Record, frozen=True, kw_only=True):
    """The start of a run; `by` names its owner, such as host and process."""

    run: Annotated[int, Meta(ge=1, le=RUN_MAX)]
    by: Annotated[str, Meta(max_length=200)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


class Fence:
    """The runs of a model.

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
        """Start a run and return its number, which is unique and above all others."""
        while True:
            # A record may be missing, so the runs of versions count too.
            written = max((folder.run for folder in version_folders(self._store, self._model)), default=0)
            run = max(self.newest(), written) + 1
            record = FenceRecord(run=run, by=by[:200], wall_ms=max(0, self._clock.wall_ms()))
            try:
                self._store.create(f"{self._records.folder}/{run:012d}.json", encode_record(record))
            except FileTaken:
                continue
            return run

    def newest(self) -> int:
        """Return the newest run; 0 before the first."""
        # Listed, not probed one by one: after records were lost, there may be a gap below the newest.
        return max(self._records.numbers(), default=0)

    def check(self, run: int) -> None:
        """Raise `RunOver` if a newer run has taken over."""
        newest = self.newest()
        if newest > run:
            record = self._records.read(newest)
            message = f"run {run} of {self._model!r} is over: run {newest} ({record.by or 'unnamed'}) has taken over"
            raise RunOver(message, help="end this trainer; the newer one continues from the newest committed version")
