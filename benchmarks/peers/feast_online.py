"""Feast's online reads: the values of users and items, written to and read from a Redis by its Python SDK.

It runs in Feast's environment. The argument is a folder with the workload (`benchmarks/online_reads.py` writes it) and
room for the registry. Each line on stdin is a turn in seconds; the answer is a line of JSON with the seconds of each
read. Requests are read in their order, over and over.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig
from feast.types import Array, Float32, Int64
from feast.value_type import ValueType

from benchmarks.peers.answer import Wrong, reserve_stdout

__all__ = ["main"]

Request: TypeAlias = tuple[int, list[int]]
Columns: TypeAlias = dict[str, list[Any]]
# The columns of a user, and those of each candidate.
Read: TypeAlias = Callable[[int, list[int]], tuple[Columns, Columns]]

_WAIT_S_MAX = 900
_TRIAL_READS = 400
# The entities' names and join keys; a view for each computed column, with the type of its values.
_KEYS = {"user": "user_id", "item": "item_id"}
_VIEWS = {
    "user": {"seen": Array(Int64), "pause": Int64, "counts": Array(Float32)},
    "item": {"rates": Array(Float32)},
}


def main() -> None:
    """Write the values, check what reads return, then read in turns until stdin ends."""
    signal.alarm(_WAIT_S_MAX)
    stdout, folder = reserve_stdout(), Path(sys.argv[1])
    workload = json.loads((folder / "workload.json").read_text())
    requests: list[Request] = workload["requests"]
    store = _store(folder, workload["redis"])
    for side in _VIEWS:
        _write(store, side, workload[side])
    name, read = _faster(store, requests)
    _check(read, requests, workload)
    del workload
    stdout.write(json.dumps({"way": name}) + "\n")
    stdout.flush()
    waiting = cycle(requests)
    for line in sys.stdin:
        until_s, durations_s = time.perf_counter() + float(line), []
        while (begin_s := time.perf_counter()) < until_s:
            read(*next(waiting))
            durations_s.append(time.perf_counter() - begin_s)
        stdout.write(json.dumps({"durations_s": durations_s}) + "\n")
        stdout.flush()


def _store(folder: Path, address: str) -> FeatureStore:
    """Return a store with its views. Its registry is loaded once and never again."""
    config = RepoConfig(
        project="features",
        provider="local",
        registry={"path": str(folder / "registry.db"), "cache_ttl_seconds": 0},
        online_store={"type": "redis", "connection_string": address},
        entity_key_serialization_version=3,
    )
    store = FeatureStore(config=config)
    for side, columns in _VIEWS.items():
        entity = Entity(name=side, join_keys=[_KEYS[side]], value_type=ValueType.INT64)
        store.apply([entity, *(_view(folder, entity, column, kind) for column, kind in columns.items())])
    return store


def _view(folder: Path, entity: Any, column: str, kind: Any) -> Any:
    return FeatureView(
        name=column,
        entities=[entity],
        ttl=timedelta(0),  # values never expire
        schema=[Field(name=entity.join_key, dtype=Int64), Field(name=column, dtype=kind)],
        source=FileSource(name=column, path=str(folder / f"{column}.parquet"), timestamp_field="event_timestamp"),
    )


def _write(store: FeatureStore, side: str, columns: Columns) -> None:
    now, key = datetime.now(UTC), _KEYS[side]
    for column in _VIEWS[side]:
        rows = {key: columns[key], column: columns[column], "event_timestamp": now}
        store.write_to_online_store(column, df=pd.DataFrame(rows))


def _faster(store: FeatureStore, requests: Sequence[Request]) -> tuple[str, Read]:
    """Return the faster way to read a user and candidates: one call after the other, or both at once."""
    of_user, of_item = ([f"{column}:{column}" for column in _VIEWS[side]] for side in ("user", "item"))
    loop = asyncio.new_event_loop()

    def calls(user: int, items: list[int]) -> tuple[Columns, Columns]:
        first = store.get_online_features(of_user, {"user_id": [user]}, full_feature_names=False)
        second = store.get_online_features(of_item, {"item_id": items}, full_feature_names=False)
        return first.to_dict(), second.to_dict()

    async def gathered(user: int, items: list[int]) -> tuple[Columns, Columns]:
        first, second = await asyncio.gather(
            store.get_online_features_async(of_user, {"user_id": [user]}, full_feature_names=False),
            store.get_online_features_async(of_item, {"item_id": items}, full_feature_names=False),
        )
        return first.to_dict(), second.to_dict()

    def at_once(user: int, items: list[int]) -> tuple[Columns, Columns]:
        return loop.run_until_complete(gathered(user, items))

    ways: dict[str, Read] = {"calls": calls, "gathered": at_once}
    taken_s = {
        name: sorted(_seconds(read, request) for request in requests[:_TRIAL_READS]) for name, read in ways.items()
    }
    name = min(ways, key=lambda way: taken_s[way][len(taken_s[way]) // 2])
    return name, ways[name]


def _seconds(read: Read, request: Request) -> float:
    begin_s = time.perf_counter()
    read(*request)
    return time.perf_counter() - begin_s


def _check(read: Read, requests: Sequence[Request], workload: dict[str, Columns]) -> None:
    """Compare what all requests read with what was written."""
    rows = {side: {key: at for at, key in enumerate(workload[side][_KEYS[side]])} for side in _VIEWS}
    for user, items in requests:
        for side, ids, found in zip(_VIEWS, ([user], items), read(user, items), strict=True):
            for column in _VIEWS[side]:
                expected = [workload[side][column][rows[side][id_]] for id_ in ids]
                # Feast reads an empty list as None.
                if [[] if value is None else value for value in found[column]] != expected:
                    message = f"{column} of {side} {ids} is {found[column]}, expected {expected}"
                    raise Wrong(message)


if __name__ == "__main__":
    main()
