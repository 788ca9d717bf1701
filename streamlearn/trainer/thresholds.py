"""Thresholds: how often a key must occur before it gets a row, by slot. It counts nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from streamlearn.errors import ConfigError
from streamlearn.features import FeatureSpec
from streamlearn.samples import FeatureColumns
from streamlearn.settings.tables import TableSettings

__all__ = ["Thresholds"]

Uint64s = npt.NDArray[np.uint64]


class Thresholds:
    """The admission thresholds of an application's slots; a wrong one raises a ConfigError."""

    def __init__(self, features: FeatureSpec, settings: TableSettings) -> None:
        self._all, counts = settings.admission_count, settings.admission_counts
        sources = [slot.name for slot in features.slots if slot.keys_of is None]
        sources += [one.name for one in features.derived_keyed]
        for name in counts:
            if name not in sources:
                message = f"tables.admission_counts: {name!r} is not a slot with keys of its own"
                help = f"those slots are {', '.join(sources)}; a slot with keys_of uses the count of the slot it names"
                raise ConfigError(message, help=help)
        if max((self._all, *counts.values())) > 1 and not settings.admission_window_ms:
            message = "keys need several occurrences before they get a row, but tables.admission_window_ms is 0"
            raise ConfigError(message, help="set how long keys without a row are counted, such as 86400000 for a day")
        # By table: the slots whose keys have a threshold of their own.
        self._own: dict[str, list[tuple[str, str, int]]] = {}
        of_salt = {slot.first_name: counts[slot.name] for slot in features.slots if slot.name in counts}
        for slot in features.slots:
            if slot.salt_name in of_salt:
                self._own.setdefault(slot.table, []).append((slot.side, slot.name, of_salt[slot.salt_name]))
        for cross in features.derived_keyed:
            if cross.name in counts:
                own = (features.side_of(cross), cross.name, counts[cross.name])
                self._own.setdefault(cross.table, []).append(own)

    def runs(self, table: str, keys: Uint64s, sides: Mapping[str, FeatureColumns]) -> list[tuple[int, int]]:
        """Return the thresholds of keys as `PsClient.push` takes them: pairs of a run's end and its threshold.

        `keys` is uint64[n] without duplicates; `sides` has the features of a step, by side.
        """
        own = self._own.get(table, [])
        if max((self._all, *(count for _, _, count in own))) == 1 or not len(keys):
            return []
        least = np.full(len(keys), self._all, np.int64)
        for side, name, count in own:
            least[np.isin(keys, sides[side].slots[name].keys)] = count
        # Keys are ordered by column, so there are about as many runs as slots.
        ends = np.append(np.flatnonzero(np.diff(least)) + 1, len(keys))
        return list(zip(ends.tolist(), least[ends - 1].tolist(), strict=True))
