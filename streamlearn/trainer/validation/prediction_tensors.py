"""Prediction tensors: what waits for its labels, in the form in which versions hold it. It scores nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from streamlearn.errors import BadRecord
from streamlearn.struct_decoder import from_json
from streamlearn.trainer.validation.journal import Lot
from streamlearn.trainer.validation.rows import Rows, correction_type, corrections_of
from streamlearn.trainer.validation.runs import Run, merged
from streamlearn.versions.format.pieces import Tensors
from streamlearn.versions.format.predictions import STREAMS

__all__ = ["LabelNote", "State", "column_tensors", "saved_rows", "state_of", "state_tensors"]

Int64s: TypeAlias = npt.NDArray[np.int64]


class State(Struct, frozen=True, forbid_unknown_fields=True):
    """What a version says of all labels: up to which watermark windows are scored, and the texts of segments."""

    width_ms: int  # of the shortest windows, which windows are numbered by
    watermark_ms: int | None
    learned_before_ms: int | None
    segments: tuple[tuple[str, tuple[str, ...]], ...]  # each segment's name, and its texts by code


@dataclass(frozen=True, eq=False)
class LabelNote:
    """What no committed version holds of one label, at a step boundary."""

    name: str
    lots: Sequence[Lot]  # of the journal
    runs: tuple[Sequence[Run], Sequence[Run]]  # their rows and their corrections
    halvings: dict[int, int]  # of all windows that were halved
    lacking: Sequence[int]  # windows with rows that are not scored
    newest_ms: int | None  # the begin of the newest closed window with rows


def state_tensors(state: State, *, is_whole: bool) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors that concern all labels. A whole set does not need those of earlier versions."""
    return {"state": np.frombuffer(msgspec.json.encode(state), np.uint8), "is_whole": np.array([is_whole])}


def state_of(tensors: Tensors) -> State:
    """Return the state in the tensors of a version."""
    try:
        return from_json(tensors["state"].tobytes(), State)
    except (KeyError, msgspec.DecodeError) as error:
        message = f"the predictions of this version cannot be read: {error}"
        raise BadRecord(message, help="continue from an older version") from error


def column_tensors(note: LabelNote, begin: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the tensors of a label; windows before `begin` are left out."""
    halved = sorted(window for window in note.halvings if window >= begin)
    yield f"{note.name}.begin", np.array([begin])
    yield f"{note.name}.halved", np.array(halved, np.int64)
    yield f"{note.name}.halvings", np.array([note.halvings[window] for window in halved], np.uint8)
    yield f"{note.name}.lacking", np.array(sorted(window for window in note.lacking if window >= begin), np.int64)
    for stream, runs in zip(STREAMS, note.runs, strict=True):
        run = merged(runs).cut(begin)[1] if runs else None
        if run is None or not len(run):
            continue
        names = run.rows.dtype.names
        columns = {"identity": run.rows} if names is None else {name: run.rows[name] for name in names}
        for name, column in ({"windows": run.windows, "counts": run.counts} | columns).items():
            yield f"{note.name}.{stream}.{name}", column


def saved_rows(
    tensors: Tensors, label: str, kind: np.dtype[Any], codes_of: Sequence[tuple[int, npt.NDArray[np.uint8]] | None]
) -> Iterator[tuple[Rows, Int64s]]:
    """Yield the saved predictions of a label, then its corrections, each with the window number of each row.

    `codes_of` has, for each segment, its place among the saved ones and its code for each saved code.
    """
    for stream in STREAMS:
        prefix = f"{label}.{stream}."
        identity = tensors.get(f"{prefix}identity", np.empty(0, np.uint64))
        windows = np.repeat(*(tensors.get(prefix + name, np.empty(0, np.int64)) for name in ("windows", "counts")))
        if not len(identity):
            yield np.empty(0, kind if stream == "rows" else correction_type(kind)), windows
            continue
        if stream == "corrected":
            yield corrections_of(kind, identity, tensors.get(f"{prefix}number")), windows
            continue
        rows = np.zeros(len(identity), kind)
        for name in kind.names or ():
            if name != "codes":
                rows[name] = tensors[prefix + name]
        for at, found in enumerate(codes_of):
            if found is not None:
                rows["codes"][:, at] = found[1][tensors[f"{prefix}codes"][:, found[0]]]
        yield rows, windows
