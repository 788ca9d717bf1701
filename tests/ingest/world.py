"""Small worlds of impressions and actions, and what a join must make of them, worked out one by one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from streamlearn.features import Label, LabelGroup
from streamlearn.ingest import Joined, JoinPlan
from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
from streamlearn.native import native
from streamlearn.settings.join import JoinSettings

GROUPS = (LabelGroup("fast", 6, 60), LabelGroup("shut", 30, 30), LabelGroup("slow", 200, 400))
LABELS = (
    Label("click", "click", "fast", 0.5),
    Label("long_view", "long_view", "fast"),
    Label("like", "like", "shut", 0.3),
    Label("click_slow", "click", "slow"),
    Label("purchase", "purchase", "slow", 0.7),
)
ACTIONS = ("click", "long_view", "like", "purchase", "unasked")
NO_LABEL = 255  # the number of an action without a label
LATENESS_MS = 20_000


class Shown(NamedTuple):
    """One impression."""

    request: str
    time: int
    partition: int
    offset: int
    first: int
    items: tuple[int, ...]
    payload: bytes


class Done(NamedTuple):
    """One action."""

    request: str
    time: int
    partition: int
    offset: int
    event_index: int
    item: int
    action: str
    weight: float = 1.0


class Row(NamedTuple):
    """One row, as an oracle says it."""

    partition: int
    offset: int
    item_index: int
    group: int
    settle_time: int
    settles: int
    labels: int
    item: int
    weights: tuple[float, ...]
    payload: bytes | None


Event = Shown | Done
Identity = tuple[int, int, int]


def plan_of(**changes: object) -> JoinPlan:
    """The plan of these worlds."""
    from_ms = changes.pop("from_ms", None)
    settings = JoinSettings(**{"orphan_wait_s": 60.0, "window_slices": 7, **changes})  # type: ignore[arg-type]
    assert from_ms is None or isinstance(from_ms, int)
    return JoinPlan(GROUPS, LABELS, "topic", settings, from_ms)


def make_world(rng: random.Random, requests: int) -> list[Event]:
    """Impressions, some of them twice, in parts, or with items twice; actions early, in time, late, twice, lost."""
    events: list[Event] = []
    offsets = [0, 0, 0]

    def show(request: str, time: int, items: Iterable[int], payload: bytes) -> None:
        partition = rng.randrange(3)
        offsets[partition] += rng.randrange(1, 3)
        events.append(Shown(request, time, partition, offsets[partition], rng.randrange(4), tuple(items), payload))

    for number in range(requests):
        request, time = f"request-{number}", rng.randrange(0, 300_000)
        items = [rng.randrange(8) for _ in range(rng.randrange(0, 5))]
        show(request, time, items, f"{request} first".encode())
        for copy in range(rng.choice((0, 0, 0, 1, 2))):
            some = [*rng.sample(items, rng.randrange(len(items) + 1)), rng.randrange(4, 10)]
            show(request, time, rng.choice((items, some)), f"{request} copy {copy}".encode())
        if rng.random() < 0.2:
            show(request, time + rng.randrange(50_000), (20, 21), f"{request} page two".encode())
        for _ in range(rng.randrange(4)):
            item = rng.choice((*items, 4, 20))
            done = Done(
                request if rng.random() < 0.95 else f"nobody-{number}",
                time + rng.choice((-10_000, 6_000, 30_000, 60_000, 60_001, rng.randrange(500_000))),
                rng.randrange(3), 1_000 + len(events), rng.randrange(3), item, rng.choice(ACTIONS),
                rng.choice((0.0, 0.5, 1.0, 3.25)),
            )  # fmt: skip
            events += [done] * rng.choice((1, 1, 2))
            if rng.random() < 0.1:  # at one time with another weight
                events.append(done._replace(offset=done.offset + 100_000, weight=2.0))
    return events


def in_order_of_arrival(rng: random.Random, events: Sequence[Event]) -> Iterator[tuple[list[Event], int]]:
    """Chunks of events, each with a watermark no later event is older than."""
    arrivals = sorted(((event.time + rng.randrange(LATENESS_MS), n, event) for n, event in enumerate(events)))
    begin = 0
    while begin < len(arrivals):
        end = min(len(arrivals), begin + rng.randrange(1, 12))
        chunk = [event for _, _, event in arrivals[begin:end]]
        yield chunk, arrivals[end - 1][0] - LATENESS_MS
        begin = end


def _at(values: Sequence[Sequence[object] | bytes]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate(([0], np.cumsum([len(value) for value in values]))).astype(np.int64)


def _joined(values: Sequence[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(values), np.uint8)


def columns_of_impressions(shown: Sequence[Shown]) -> ImpressionColumns:
    """Impressions as columns."""
    ids, payloads = [one.request.encode() for one in shown], [one.payload for one in shown]
    return ImpressionColumns(
        request_ids=_joined(ids),
        request_at=_at(ids),
        event_time_ms=np.array([one.time for one in shown], np.int64),
        partition=np.array([one.partition for one in shown], np.int32),
        offset=np.array([one.offset for one in shown], np.int64),
        first_item=np.array([one.first for one in shown], np.int32),
        items=np.array([item for one in shown for item in one.items], np.uint64),
        items_at=_at([one.items for one in shown]),
        payload=_joined(payloads),
        payload_at=_at(payloads),
    )


def columns_of_actions(plan: JoinPlan, done: Sequence[Done]) -> ActionColumns:
    """Actions as columns."""
    ids = [one.request.encode() for one in done]
    return ActionColumns(
        request_ids=_joined(ids),
        request_at=_at(ids),
        event_time_ms=np.array([one.time for one in done], np.int64),
        partition=np.array([one.partition for one in done], np.int32),
        offset=np.array([one.offset for one in done], np.int64),
        event_index=np.array([one.event_index for one in done], np.int32),
        items=np.array([one.item for one in done], np.uint64),
        codes=np.array([plan.codes.get(one.action, NO_LABEL) for one in done], np.uint8),
        weights=np.array([one.weight for one in done], np.float32),
        values=np.full(len(done), np.nan, np.float32),
    )


def rows_of(joined: Joined) -> list[Row]:
    """Rows as plain values."""
    requests, rows, found = joined.requests, joined.rows, []
    for row in range(len(rows)):
        request = int(rows.request_index[row])
        begin, end = requests.payload_at[request : request + 2]
        found.append(
            Row(
                int(requests.partition[request]), int(requests.offset[request]), int(rows.item_index[row]),
                int(rows.group[row]), int(rows.settle_time_ms[row]), int(rows.settles[row]), int(rows.labels[row]),
                int(rows.item[row]), tuple(rows.weights[row].tolist()),
                None if requests.reads_back[request] else requests.payload[begin:end].tobytes(),
            )
        )  # fmt: skip
        assert rows.item_index[row] - rows.position[row] == requests.first_item[request]
    return found


def is_kept(plan: JoinPlan, identity: Identity, label: Label) -> bool:
    """Whether the negative of an identity is kept."""
    partition, offset, item = identity
    text = partition.to_bytes(4, "little") + offset.to_bytes(8, "little") + item.to_bytes(4, "little")
    hashed = int(native.hash_strings(np.array([0, 16], np.int32), np.frombuffer(text, np.uint8), plan.salt(label))[0])
    return label.sample_rate == 1.0 or hashed < int(label.sample_rate * 2**64)


def winners(events: Sequence[Event]) -> dict[tuple[str, int], tuple[Identity, Shown]]:
    """Where each (request, item) counts: the lowest identity it was shown under."""
    found: dict[tuple[str, int], tuple[Identity, Shown]] = {}
    for shown in events:
        if isinstance(shown, Shown):
            for position, item in enumerate(shown.items):
                identity = (shown.partition, shown.offset, shown.first + position)
                known = found.get((shown.request, item))
                if known is None or identity < known[0]:
                    found[shown.request, item] = (identity, shown)
    return found


def _first(events: Sequence[Event], request: str, item: int) -> dict[str, tuple[int, float]]:
    """Time and weight of the action of each kind that counts: the earliest, of one time the heaviest."""
    found: dict[str, tuple[int, float]] = {}
    for done in events:
        if isinstance(done, Done) and done.request == request and done.item == item:
            said = (done.time, done.weight)
            found[done.action] = min(said, found.get(done.action, said), key=lambda one: (one[0], -one[1]))
    return found


def rows_expected(plan: JoinPlan, events: Sequence[Event]) -> list[Row]:
    """Every row these events make, each pair of events compared with each."""
    rows = []
    shortest_ms = 1_000 * min(group.window_s for group in plan.groups)
    for (request, item), (identity, shown) in winners(events).items():
        first = _first(events, request, item)
        for number, group in enumerate(plan.groups):
            due, until = shown.time + 1_000 * group.wait_s, shown.time + 1_000 * group.window_s
            numbered = [(bit, label) for bit, label in enumerate(plan.labels) if label.group == group.name]
            at = {bit: first[label.action][0] for bit, label in numbered if label.action in first}
            positive = sum(1 << bit for bit, time in at.items() if time <= due)
            negative = sum(
                1 << bit for bit, label in numbered if not positive >> bit & 1 and is_kept(plan, identity, label)
            )
            settled = [(due, positive | negative, positive)] if positive | negative else []
            settled += [(time, 1 << bit, 1 << bit) for bit, time in at.items() if due < time <= until]
            for time, settles, labels in settled:
                payload = shown.payload if time <= shown.time + shortest_ms else None
                weights = tuple(
                    first[label.action][1] if labels >> bit & 1 else 1.0 for bit, label in enumerate(plan.labels)
                )
                rows.append(Row(*identity, number, time, settles, labels, item, weights, payload))
    return sorted(rows, key=repr)


def outcomes_expected(plan: JoinPlan, events: Sequence[Event]) -> dict[tuple[Identity, int], tuple[int, bytes]]:
    """Of every (identity, label) that is to be learned, the final label and the bytes of the impression."""
    found = {}
    for (request, item), (identity, shown) in winners(events).items():
        first = _first(events, request, item)
        windows = {group.name: 1_000 * group.window_s for group in plan.groups}
        for bit, label in enumerate(plan.labels):
            positive = label.action in first and first[label.action][0] <= shown.time + windows[label.group]
            if positive or is_kept(plan, identity, label):
                found[identity, bit] = (int(positive), shown.payload)
    return found


def unjoined_expected(plan: JoinPlan, events: Sequence[Event]) -> set[Done]:
    """Actions that some label asks for and no window takes."""
    shown_at, found = winners(events), set()
    for done in events:
        if isinstance(done, Done) and done.action in plan.codes:
            windows = [
                1_000 * group.window_s
                for group in plan.groups
                if any(label.action == done.action and label.group == group.name for label in plan.labels)
            ]
            winner = shown_at.get((done.request, done.item))
            if winner is None or done.time > winner[1].time + max(windows):
                found.add(done)
    return found
