"""ImpressionFeatures: the features of decoded impressions, and where in them the item of a joined row is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events import EventColumns
from streamlearn.features import FeatureSpec
from streamlearn.ingest.join.columns import JoinedInteractions, JoinedRequests, JoinedRows
from streamlearn.ingest.output.sample_features import text_codes
from streamlearn.samples import FeatureColumns, RequestColumns
from streamlearn.samples.event_features import features_of

__all__ = ["ImpressionFeatures", "Places"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Places:
    """The impression and the item of some rows, by their numbers; and which rows have them."""

    request: Int64s
    item: Int64s
    is_there: npt.NDArray[np.bool_]

    def take(self, rows: Int64s) -> Places:
        """Return those of some rows."""
        return Places(self.request[rows], self.item[rows], self.is_there[rows])


@dataclass(frozen=True, eq=False)
class ImpressionFeatures:
    """The features of the impressions of one join output, each decoded once.

    Attributes:
        requests: Of each impression.
        user: Of each impression.
        items: Of every item of all impressions.
        columns: Those of `EventColumns`.
        place_of: int64[U]. The impression of each joined request; -1 if it is gone.
        is_unavailable: Of each impression whether its computed columns are defaults, since their store was away.
    """

    requests: RequestColumns
    user: FeatureColumns
    items: FeatureColumns
    columns: Mapping[str, npt.NDArray[Any]]
    place_of: Int64s
    is_unavailable: npt.NDArray[np.bool_]
    item_id: str

    @classmethod
    def of(
        cls, spec: FeatureSpec, requests: JoinedRequests, events: EventColumns, place_of: Int64s
    ) -> ImpressionFeatures:
        """Return the features of decoded impressions, whose `record_index` is a request that has them."""
        columns, source = events.columns, events.record_index
        version, is_served = columns["served_version"], columns["served_version?"]
        return cls(
            requests=RequestColumns(
                partition=requests.partition[source],
                offset=requests.offset[source],
                event_time_ms=requests.event_time_ms[source],
                shown_wall_ms=columns["shown_wall_ms"],
                served_version=np.where(is_served == 1, version, -1),
            ),
            user=features_of(spec, "user", columns),
            items=features_of(spec, "item", columns),
            columns=columns,
            place_of=place_of,
            is_unavailable=_unavailable(columns, len(events)),
            item_id=spec.item_id,
        )

    def find(self, rows: JoinedRows | JoinedInteractions) -> Places:
        """Find the impression and the item of each row. One that was read again must have the joined item's key."""
        items_at = self.columns["items[]"].astype(np.int64)
        request = self.place_of[rows.request_index]
        at = items_at[request] + rows.position
        is_there = (request >= 0) & (at < items_at[request + 1])
        known = slice(None) if is_there.all() else is_there
        is_there[known] = self.items.slots[self.item_id].keys[at[known]] == rows.item[known]
        return Places(request, at, is_there)


def _unavailable(columns: Mapping[str, npt.NDArray[Any]], count: int) -> npt.NDArray[np.bool_]:
    if "served_features$" not in columns:
        return np.zeros(count, np.bool_)
    outcomes = text_codes(columns, "served_features")
    return np.array([text == "unavailable" for text in outcomes.texts], np.bool_)[outcomes.codes]
