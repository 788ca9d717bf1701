"""The join against an oracle that compares every event with every other, in any order of arrival."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import JoinFull
from streamlearn.ingest import JoinCore, JoinPlan
from streamlearn.ingest.join.columns import LetterKind, Letters
from streamlearn.marks import MarkedRows, Marks
from tests.ingest.world import (
    Done,
    Event,
    Identity,
    Row,
    Shown,
    columns_of_actions,
    columns_of_impressions,
    in_order_of_arrival,
    make_world,
    outcomes_expected,
    plan_of,
    rows_expected,
    rows_of,
    unjoined_expected,
    winners,
)

FOREVER_MS = 1 << 60


def add(core: JoinCore, events: Sequence[Event]) -> None:
    """Add events, impressions first."""
    core.add_impressions(columns_of_impressions([one for one in events if isinstance(one, Shown)]))
    core.add_actions(columns_of_actions(core.plan, [one for one in events if isinstance(one, Done)]))


def rows_at(core: JoinCore, watermark_ms: int) -> list[Row]:
    """The rows that a watermark brings."""
    core.advance(watermark_ms)
    return rows_of(core.take(1_000_000))


def shown(time: int = 0, **changes: object) -> Shown:
    """One impression of two items."""
    return Shown("q7", time, 3, 5_120, 8, (901, 902), b"payload")._replace(**changes)  # type: ignore[arg-type]


def done(time: int, **changes: object) -> Done:
    """One click on an item of it."""
    return Done("q7", time, 3, 77, 2, 902, "click")._replace(**changes)  # type: ignore[arg-type]


def test_a_history_that_is_joined_at_once_comes_in_the_order_of_time_whatever_the_labels_wait() -> None:
    core = JoinCore(plan_of())
    impressions = [shown(minute * 60_000, request=f"q{minute}", offset=minute) for minute in range(300)]
    actions = [done(one.time + 70_000, request=one.request, offset=one.offset) for one in impressions[::3]]
    add(core, [*impressions, *actions])
    core.advance(FOREVER_MS)
    minutes, groups = [], set()
    while core.ready:
        rows = core.take(100).rows
        minutes += (rows.settle_time_ms // 60_000).tolist()
        groups |= set(rows.settles.tolist())
    assert len(groups) > 1, "labels of several groups are among them"
    assert minutes == sorted(minutes)
    assert minutes[-1] > 299


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_any_order_of_arrival_makes_the_rows_of_the_oracle(seed: int, requests: int) -> None:
    rng = random.Random(seed)
    plan = plan_of()
    events = make_world(rng, requests)
    core, found, letters = JoinCore(plan), [], []
    for chunk, watermark_ms in in_order_of_arrival(rng, events):
        add(core, chunk)
        core.advance(watermark_ms)
        taken = core.take(rng.choice((0, 3, 1_000)))
        found += rows_of(taken)
        letters.append(taken.letters)
    core.advance(FOREVER_MS)
    taken = core.take(1_000_000)
    found += rows_of(taken)
    letters.append(taken.letters)
    assert sorted(found, key=repr) == rows_expected(plan, events)
    _check_order(found)
    _check_letters(plan, events, letters)
    assert (core.pending, core.waiting, core.ready, core.letters) == (0, 0, 0, 0)
    assert core.next_deadline_ms() is None
    counters = core.counters
    assert counters["rows"] == len(found)
    assert counters["impressions"] == sum(isinstance(event, Shown) for event in events)
    assert counters["impressions_late"] == counters["impressions_partly_late"] == 0


def _check_order(rows: Sequence[Row]) -> None:
    """No label is settled positive before it was settled negative, and none twice the same way."""
    seen: dict[tuple[object, ...], int] = {}
    for row in rows:
        for bit in range(len(plan_of().labels)):
            if row.settles >> bit & 1:
                label, key = row.labels >> bit & 1, (*row[:3], bit)
                assert label > seen.get(key, -1)
                seen[key] = label


def _check_letters(plan: JoinPlan, events: Sequence[Event], letters: Sequence[Letters]) -> None:
    expected = unjoined_expected(plan, events)
    found = set()
    for one in letters:
        for row in range(len(one)):
            assert one.kind[row] in (LetterKind.ACTION_LATE, LetterKind.ACTION_ORPHAN)
            found.add((int(one.partition[row]), int(one.offset[row]), int(one.index[row])))
    by_origin = {(one.partition, one.offset, one.event_index): one for one in expected}
    assert found <= set(by_origin)
    kinds = {(one.request, one.item, one.action) for one in expected}
    assert {(by_origin[at].request, by_origin[at].item, by_origin[at].action) for at in found} == kinds


class Trainer:
    """Learns what marks tell it to, dies, and reads again from where it saved."""

    def __init__(self, labels: int) -> None:
        self.labels = labels
        self.log: list[list[Row]] = []
        self.learned: dict[tuple[Identity, int], int] = {}
        self.marks, self.step, self.position = Marks(labels), 0, 0
        self.saves: list[dict[str, bytes]] = []
        self.since = 0
        self.kept: tuple[dict[tuple[Identity, int], int], int] = ({}, 0)

    def read(self) -> None:
        """Learn all that was delivered since."""
        for rows in self.log[self.position :]:
            self.step += 1
            settled = self.marks.settle(self.step, _marked(rows))
            for row, learn, correct in zip(rows, settled.learn.tolist(), settled.correct.tolist(), strict=True):
                for bit in range(self.labels):
                    key = ((row.partition, row.offset, row.item_index), bit)
                    if learn >> bit & 1:
                        assert key not in self.learned
                        self.learned[key] = row.labels >> bit & 1
                    if correct >> bit & 1:
                        assert self.learned[key] == 0
                        assert row.labels >> bit & 1
                        self.learned[key] = 1
        self.position = len(self.log)

    def cut(self) -> None:
        """Save what was learned."""
        self.marks.acknowledge(self.step)
        saved = self.marks.save(self.since)
        self.saves.append(dict(saved.entries))
        self.since, self.kept = saved.number, (dict(self.learned), self.position)

    def die(self, rng: random.Random) -> None:
        """Start again from the last save, reading some messages again that were learned before it."""
        self.marks = Marks(self.labels)
        for entries in self.saves:
            self.since = self.marks.load(entries)
        self.learned, position = dict(self.kept[0]), self.kept[1]
        self.position = rng.randrange(position + 1)
        self.step = 0


def _marked(rows: Sequence[Row]) -> MarkedRows:
    columns = np.array([(*row[:3], row.settles, row.labels) for row in rows], np.int64).reshape(-1, 5).T
    partition, offset, item, settles, labels = columns
    times = np.zeros(len(rows), np.int64)
    index, masks = np.arange(len(rows), dtype=np.int32), (settles.astype(np.uint32), labels.astype(np.uint32))
    return MarkedRows("topic", partition.astype(np.int32), offset.copy(), times, index, item.astype(np.int32), *masks)


@settings(max_examples=200)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_what_is_learned_is_the_oracles_whatever_restarts(seed: int, requests: int) -> None:
    rng = random.Random(seed)
    plan = plan_of()
    events = make_world(rng, requests)
    trainer, payloads = Trainer(len(plan.labels)), {}
    chunks = list(in_order_of_arrival(rng, events))
    core, acknowledged = JoinCore(plan), None
    for chunk, watermark_ms in chunks[: rng.randrange(len(chunks) + 1)]:
        add(core, chunk)
        trainer.log.append(rows_at(core, watermark_ms))
        if rng.random() < 0.3:
            acknowledged = watermark_ms
        _train(trainer, rng)
    # Ingest dies and reads again from before all windows that were open where its progress was acknowledged.
    from_ms = None if acknowledged is None else acknowledged - plan.longest_window_ms - LATENESS
    begin_ms = None if from_ms is None else from_ms - plan.longest_window_ms
    again = [event for event in events if begin_ms is None or event.time >= begin_ms]
    core, first_again = JoinCore(plan_of(from_ms=from_ms)), len(trainer.log)
    for chunk, watermark_ms in in_order_of_arrival(rng, again):
        add(core, chunk)
        trainer.log.append(rows_at(core, watermark_ms))
        _train(trainer, rng)
    trainer.log.append(rows_at(core, FOREVER_MS))
    trainer.read()
    times = {(one.partition, one.offset): one.time for one in events if isinstance(one, Shown)}
    assert from_ms is None or all(times[row[:2]] >= from_ms for rows in trainer.log[first_again:] for row in rows)
    by_origin = {(one.partition, one.offset): one.payload for one in events if isinstance(one, Shown)}
    for row in (row for rows in trainer.log for row in rows):
        # What was let go of is read back by its origin.
        payloads[row[:3]] = by_origin[row.partition, row.offset] if row.payload is None else row.payload
    expected = outcomes_expected(plan, events)
    assert trainer.learned == {key: label for key, (label, _) in expected.items()}
    assert {key: payloads[key[0]] for key in trainer.learned} == {key: said for key, (_, said) in expected.items()}


LATENESS = 30_000


def _train(trainer: Trainer, rng: random.Random) -> None:
    if rng.random() < 0.5:
        trainer.read()
    if rng.random() < 0.2:
        trainer.cut()
    if rng.random() < 0.2:
        trainer.die(rng)


def test_the_case_of_the_documentation() -> None:
    core = JoinCore(plan_of())
    add(core, [shown(), done(4_000), done(4_000), done(5_000, action="long_view"), done(50_000, item=901)])
    add(core, [shown(offset=5_400)])
    fast = [row for row in rows_at(core, 6_001) if row.group == 0]
    assert [(row.item_index, row.labels) for row in fast] in ([(8, 0), (9, 3)], [(9, 3)])
    corrections = [row for row in rows_at(core, 50_001) if row.group == 0]
    assert [(row.item_index, row.settles, row.labels, row.settle_time) for row in corrections] == [(8, 1, 1, 50_000)]
    assert core.counters["impressions_duplicate"] == 1
    assert core.counters["actions_duplicate"] == 1


def test_a_row_is_due_when_the_watermark_has_passed_and_not_before() -> None:
    core = JoinCore(plan_of())
    add(core, [shown()])
    assert core.next_deadline_ms() == 6_001
    assert rows_at(core, 6_000) == []
    assert {row.settle_time for row in rows_at(core, 6_001)} == {6_000}
    assert core.next_deadline_ms() == 30_001
    assert rows_at(core, 6_000) == []


def test_the_timer_finds_every_deadline_and_comes_to_an_end() -> None:
    rng = random.Random(4)
    plan, events = plan_of(), make_world(random.Random(4), 30)
    core = JoinCore(plan)
    chunks = list(in_order_of_arrival(rng, events))
    for chunk, _ in chunks:
        add(core, chunk)
    rows, turns = [], 0
    while (deadline := core.next_deadline_ms()) is not None:
        rows += rows_at(core, deadline)
        turns += 1
        assert turns < 10_000
    assert sorted(rows, key=repr) == rows_expected(plan, events)
    assert (core.pending, core.waiting) == (0, 0)


def test_the_lowest_origin_wins_only_while_nothing_was_emitted() -> None:
    core = JoinCore(plan_of())
    add(core, [shown(), done(1_000)])
    add(core, [shown(offset=4_000, payload=b"lower")])
    rows = rows_at(core, 6_001)
    assert {(row.offset, row.payload) for row in rows} == {(4_000, b"lower")}
    assert [row.labels for row in rows if row.item == 902 and row.group == 0] == [1]
    add(core, [shown(offset=3_000)])
    assert {row.offset for row in rows_at(core, FOREVER_MS)} == {4_000}


def test_a_request_shown_in_parts_has_all_its_items_each_once() -> None:
    core = JoinCore(plan_of())
    add(core, [shown(), shown(time=2_000, offset=5_121, items=(902, 903, 903))])
    add(core, [done(3_000, item=903)])
    rows = [row for row in rows_at(core, FOREVER_MS) if row.group == 2]
    assert [(row.offset, row.item_index, row.item) for row in rows] == [
        (5_120, 8, 901), (5_120, 9, 902), (5_121, 9, 903),
    ]  # fmt: skip
    assert [row.labels for row in rows] == [0, 0, 8]
    assert core.counters["impressions_split"] == 1
    assert core.counters["items_repeated"] == 2


def test_what_comes_after_its_window_becomes_a_letter() -> None:
    core = JoinCore(plan_of())
    add(core, [shown()])
    core.advance(400_001)
    add(core, [done(300_000, action="like"), shown(), shown(request="q8", time=350_000)])
    core.advance(FOREVER_MS)
    letters = core.take(100).letters
    kinds = [(int(kind), int(groups)) for kind, groups in zip(letters.kind, letters.groups, strict=True)]
    assert kinds == [
        (LetterKind.IMPRESSION_LATE, 0b111),
        (LetterKind.IMPRESSION_LATE, 0b010),
        (LetterKind.ACTION_LATE, 0),
    ]
    assert letters.payload.tobytes() == b"payload" * 2
    assert letters.request_ids.tobytes() == b"q7q8q7"
    assert (core.counters["impressions_late"], core.counters["impressions_partly_late"]) == (1, 1)


def test_an_action_that_comes_late_but_within_its_window_corrects_at_once() -> None:
    core = JoinCore(plan_of())
    add(core, [shown()])
    rows_at(core, 20_000)
    add(core, [done(1_000), done(3_000, item=901)])
    corrections = rows_of(core.take(100))
    assert [(row.item, row.group, row.settle_time, row.labels) for row in corrections] == [
        (902, 0, 6_000, 1), (901, 0, 6_000, 1),
    ]  # fmt: skip
    assert [row.labels for row in rows_at(core, 250_000) if row.group == 2] == [8, 8]


def test_an_action_on_a_request_whose_windows_are_over_is_late_and_one_on_no_request_an_orphan() -> None:
    core = JoinCore(plan_of(request_actions_max=1))
    add(core, [shown()])
    rows_at(core, 5_000_000)
    assert core.pending == 0
    add(core, [done(5_000_000), done(5_000_001, item=901), done(5_000_002, request="nobody")])
    core.advance(FOREVER_MS)
    letters = core.take(10).letters
    assert Counter(letters.kind.tolist()) == {LetterKind.ACTION_LATE: 2, LetterKind.ACTION_ORPHAN: 1}
    assert (core.counters["actions_late"], core.counters["actions_orphan"]) == (2, 1)


def test_actions_of_requests_that_are_not_logged_are_counted_apart() -> None:
    core = JoinCore(plan_of(logged_share=0.25))
    add(core, [done(1_000, request=f"request-{number}", offset=number) for number in range(1_000)])
    core.advance(FOREVER_MS)
    counters = core.counters
    assert 200 < counters["actions_orphan"] < 300
    assert counters["actions_orphan"] + counters["actions_unlogged"] == 1_000
    assert len(core.take(1_000).letters) == counters["actions_orphan"]


def test_actions_that_may_be_of_impressions_from_before_the_start_are_no_orphans() -> None:
    core = JoinCore(plan_of(from_ms=1_000_000))
    add(core, [shown(time=999_999), done(1_001_000), done(1_400_001, request="q9")])
    assert rows_at(core, FOREVER_MS) == []
    assert (core.counters["impressions_before"], core.counters["actions_before"]) == (1, 1)
    assert core.counters["actions_orphan"] == 1


@pytest.mark.parametrize("from_ms", [1, 60_000, 250_000, 300_000])
def test_an_item_repeated_in_a_later_part_counts_once_wherever_a_restart_begins(from_ms: int) -> None:
    first, later = shown(), shown(300_000, offset=5_400, items=(902, 903))
    clicks = [done(310_000), done(310_000, offset=78, item=903)]
    events: list[Event] = [first, later, *clicks]
    learned = set()
    for begin_ms in (None, from_ms):
        core = JoinCore(plan_of(from_ms=begin_ms))
        add(core, [first])
        rows = rows_at(core, 250_000)
        add(core, [later, *clicks])
        rows += rows_at(core, FOREVER_MS)
        counters, letters = core.counters, core.take(10).letters
        assert (len(letters), counters["actions_orphan"], counters["actions_late"]) == (0, 0, 0)
        # The click on 903 makes two labels positive. That on 902 comes after the shorter of its windows.
        assert (counters["positives"], counters["actions_before"]) == ((3, 0) if begin_ms is None else (2, 1))
        assert begin_ms is None or {row.offset for row in rows} == {5_400}
        learned |= {(row.item, row.offset) for row in rows}
    assert learned == {(901, 5_120), (902, 5_120), (903, 5_400)}
    assert (counters["impressions_before"], counters["items_repeated"]) == (1, 1)
    assert learned == {(item, identity[1]) for (_, item), (identity, _) in winners(events).items()}


def test_an_impression_from_before_the_start_claims_its_items_for_its_windows_only() -> None:
    core = JoinCore(plan_of(from_ms=1_000_000))
    add(core, [shown(599_999, request="older"), shown(999_999), shown(1_400_000, offset=5_400)])
    add(core, [shown(1_000_000, request="older", offset=5_500), done(1_399_999), done(1_400_001, offset=78)])
    assert core.pending == 3
    rows = rows_at(core, FOREVER_MS)
    assert {row.offset for row in rows} == {5_400, 5_500}
    assert (core.counters["impressions_before"], core.counters["actions_before"]) == (2, 1)


def test_a_join_is_not_woken_for_rows_of_an_impression_from_before_the_start() -> None:
    core = JoinCore(plan_of(from_ms=1_000_000))
    core.advance(950_000)
    add(core, [shown(999_999)])
    deadline_ms = core.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > 999_999 + 30_001  # it only lets go of memory


def test_a_full_join_refuses_and_changes_nothing_until_there_is_room() -> None:
    core = JoinCore(plan_of(pending_bytes_max=1 << 16))
    number = 0
    with pytest.raises(JoinFull, match="are in use"):  # noqa: PT012
        for number in range(10_000):
            add(core, [shown(request=f"request-{number}", time=number, offset=number, payload=b"x" * 300)])
    assert core.pending == number > 50
    assert core.bytes <= 1.25 * (1 << 16)
    with pytest.raises(JoinFull):
        add(core, [shown(time=number, payload=b"x" * 300)])
    assert core.counters["refusals"] == 2
    assert core.pending == number
    rows_at(core, FOREVER_MS)
    add(core, [shown(time=FOREVER_MS >> 20, payload=b"x" * 300)])


def test_memory_is_let_go_of_when_windows_are_over() -> None:
    core = JoinCore(plan_of())
    empty = core.bytes
    for number in range(2_000):
        add(core, [shown(request=f"request-{number}", offset=number, payload=b"x" * 300)])
    full = core.bytes
    rows_at(core, 60_001 + 10_000)
    assert core.pending == 2_000
    assert core.bytes < full - 2_000 * 300
    rows_at(core, FOREVER_MS)
    assert core.pending == 0
    # A hash of each closed request stays, so that late actions are known as such.
    assert core.bytes < empty + 64 * 16 * 12 + 2 * 8 * 2_000 + 1_000


def test_rows_that_wait_to_be_taken_keep_their_payload() -> None:
    core = JoinCore(plan_of())
    add(core, [shown()])
    core.advance(FOREVER_MS)
    rows = [row for _ in range(core.ready) for row in rows_of(core.take(1))]
    assert {row.payload for row in rows if row.group != 2} == {b"payload"}
    assert {row.payload for row in rows if row.group == 2} == {None}


def test_a_request_has_so_many_impressions_and_waiting_actions_and_no_more() -> None:
    core = JoinCore(plan_of(request_impressions_max=2, request_actions_max=3))
    add(core, [shown(offset=number, items=(number,)) for number in range(3)])
    add(core, [done(0, request="q9", item=number) for number in range(4)])
    assert core.counters["impressions_excess"] == 1
    assert core.counters["actions_orphan"] == 1
    assert core.take(10).letters.kind.tolist() == [LetterKind.IMPRESSION_EXCESS, LetterKind.ACTION_ORPHAN]


def test_columns_that_contradict_each_other_are_refused() -> None:
    core = JoinCore(plan_of())
    good = columns_of_impressions([shown()])
    for name, bad in (("event_time_ms", good.event_time_ms + (1 << 60)), ("first_item", good.first_item - 100)):
        with pytest.raises(ValueError, match=r"ms, out of the range|index"):
            core.add_impressions(type(good)(**{**vars(good), name: bad}))
    with pytest.raises(TypeError, match="times"):
        core.add_impressions(type(good)(**{**vars(good), "event_time_ms": good.first_item}))
    assert core.pending == 0
