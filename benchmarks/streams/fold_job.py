"""The peer of folding: the same states as a Beam job of single interactions, with Beam's state for each user.

It has advantages: it folds with our native code, reads its interactions from memory, and writes no store. The last line
of stdout is the number of interactions a second, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam import coders
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from benchmarks.features import SPEC
from streamlearn.ingest.beam.runners import runner_options
from streamlearn.native import native
from streamlearn.settings.ingest import IngestSettings

__all__ = ["main"]

_BEGIN_MS, _USERS = 1_700_000_000_000, 2_000


class _Seen:
    """The times of the first and of the last interaction, in this process."""

    begun_s = last_s = 0.0
    count = 0


@beam.typehints.with_output_types(tuple[int, tuple[int, int, int]])
class _Interactions(beam.DoFn):
    """Makes interactions of a user: number, item and kind each."""

    def process(self, element: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        rng = np.random.default_rng(1)
        columns = (rng.integers(0, _USERS, element), rng.integers(0, 1_000, element), rng.integers(0, 3, element))
        for number, (user, item, kind) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            yield user, (number, item, kind)


@beam.typehints.with_output_types(int)
class _Fold(beam.DoFn):
    """The state of a user."""

    STATE = ReadModifyWriteStateSpec("state", coders.BytesCoder())

    def setup(self) -> None:
        self._features = native.Features(SPEC.entities[0].definition)

    def process(
        self, element: tuple[int, tuple[int, int, int]], state: Any = beam.DoFn.StateParam(STATE)
    ) -> Iterator[int]:
        _Seen.begun_s = _Seen.begun_s or time.time()
        _, (number, item, kind) = element
        columns = (
            np.zeros(1, np.uint32),
            np.array([_BEGIN_MS + number]),
            np.array([number + 1], np.uint64),
            np.array([number]),
            np.array([kind], np.uint8),
            np.array([np.nan], np.float32),
            np.array([item], np.uint64),
        )
        _, (folded,), _ = self._features.fold([state.read()], columns)
        state.write(folded)
        _Seen.count += 1
        _Seen.last_s = time.time()
        yield number


def main() -> None:
    """Fold as many interactions as the first word says; further words are flags of Beam."""
    count = int(sys.argv[1])
    with beam.Pipeline(options=runner_options(IngestSettings(), more=sys.argv[2:])) as pipeline:
        made = pipeline | "Begin" >> beam.Create([count]) | "Make" >> beam.ParDo(_Interactions())  # type: ignore[no-untyped-call]
        made | "Fold" >> beam.ParDo(_Fold())  # type: ignore[no-untyped-call]
    if count != _Seen.count:
        message = f"{_Seen.count} of {count} interactions were folded"
        raise AssertionError(message)
    print(json.dumps(count / (_Seen.last_s - _Seen.begun_s)), flush=True)


if __name__ == "__main__":
    main()
