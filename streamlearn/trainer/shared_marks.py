"""SharedMarks: marks that several stages share, and their bytes in a version."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.marks import MarkedRows, Marks, Settled
from streamlearn.settings.join import MarksSettings
from streamlearn.struct_decoder import from_json
from streamlearn.table.foreign import npz_arrays
from streamlearn.trainer.intake.message import Reached

__all__ = ["SharedMarks"]

_REACHED, _REFUSED = "reached", "refused-"


class SharedMarks:
    """Marks for several threads, saved together with the position up to which messages are learned."""

    def __init__(self, labels: int, settings: MarksSettings, numbers: int = 0) -> None:
        self._marks, self._lock = Marks(labels, settings, numbers=numbers), threading.Lock()
        self._newest = 0
        # Refused rows, with the step whose acknowledgement puts them into the saved marks.
        self._refused: list[tuple[int, MarkedRows]] = []

    @classmethod
    def of(cls, app: App, settings: MarksSettings) -> Self:
        """Return empty marks of an application."""
        return cls(len(app.labels), settings, app.corrected_numbers)

    def settle(self, step: int, rows: MarkedRows) -> Settled:
        """See `Marks`."""
        with self._lock:
            self._newest = step
            return self._marks.settle(step, rows)

    def refuse(self, step: int, rows: MarkedRows) -> None:
        """See `Marks`; steps that were learned in between do not matter."""
        with self._lock:
            self._newest = max(step, self._newest)
            self._marks.refuse(self._newest, rows)
            self._refused.append((self._newest, rows))

    def acknowledge(self, step: int) -> None:
        """See `Marks`."""
        with self._lock:
            self._marks.acknowledge(step)
            self._refused = [(booked, rows) for booked, rows in self._refused if booked > step]

    def save(self, reached: Reached) -> dict[str, bytes]:
        """Return all acknowledged marks, the position they belong to, and the rows refused under any later step."""
        with self._lock:
            entries = dict(self._marks.save().entries)
            refused = {f"{_REFUSED}{at}": _bytes_of(rows) for at, (_, rows) in enumerate(self._refused)}
        return entries | refused | {_REACHED: msgspec.json.encode(reached)}

    def forget(self, horizon_ms: int) -> None:
        """See `Marks`."""
        with self._lock:
            self._marks.forget(horizon_ms)

    def load(self, entries: Mapping[str, bytes | memoryview]) -> Reached:
        """Continue from a save; an invalid one raises a BadRecord."""
        if _REACHED not in entries:
            message = f"the marks of this version lack the positions of training; they have {sorted(entries)[:8]}"
            raise BadRecord(message, help="continue from a version that this trainer wrote")
        try:
            reached = from_json(entries[_REACHED], Reached)
        except msgspec.DecodeError as error:
            message = f"the positions of training cannot be read: {error}"
            raise BadRecord(message, help="continue from an older version") from error
        of_marks = {name: bytes(data) for name, data in entries.items() if not name.startswith((_REACHED, _REFUSED))}
        with self._lock:
            self._marks.load(of_marks)
            for name in sorted(entries):
                if name.startswith(_REFUSED):
                    self._refuse_saved(_rows_of(bytes(entries[name])))
            self._marks.acknowledge(0)
        return reached

    def relabelled(self, sources: Sequence[int | None], *, numbers: int = 0) -> SharedMarks:
        """Return these marks, as loaded, for other labels; see `Marks`."""
        with self._lock:
            moved = SharedMarks.__new__(SharedMarks)
            moved._marks, moved._lock = self._marks.relabelled(sources, numbers=numbers), threading.Lock()
            moved._newest, moved._refused = 0, []
            return moved

    @property
    def horizon_ms(self) -> int | None:
        """See `Marks`."""
        with self._lock:
            return self._marks.horizon_ms

    @property
    def bytes(self) -> int:
        """The bytes of memory that the marks use."""
        with self._lock:
            return self._marks.bytes

    def _refuse_saved(self, rows: MarkedRows) -> None:
        try:
            self._marks.refuse(0, rows)
        except (TypeError, ValueError) as error:  # columns of other types or lengths
            message = f"refused rows do not fit: {error}"
            raise BadRecord(message, help="continue from an older version") from error


def _bytes_of(rows: MarkedRows) -> bytes:
    written = io.BytesIO()
    given = {name: value for name, value in vars(rows).items() if value is not None}
    columns: dict[str, Any] = {name: np.asarray(value) for name, value in given.items()}
    np.savez(written, **columns)
    return written.getvalue()


def _rows_of(data: bytes) -> MarkedRows:
    try:
        columns: dict[str, Any] = npz_arrays(io.BytesIO(data))
        return MarkedRows(**columns | {"topic_id": str(columns["topic_id"])})
    # Bytes that are not a file of arrays, or claim an absurd size, fail in many ways; none of them is a bug here.
    except Exception as error:
        message = f"refused rows cannot be read: {type(error).__name__}: {error}"
        raise BadRecord(message, help="continue from an older version") from error
