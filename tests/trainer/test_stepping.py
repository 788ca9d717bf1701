"""StepCutter against a plain dict: the same steps whole, and after a restart at any boundary with marks saved there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.samples import SampleBatch
from streamlearn.settings.join import MarksSettings
from streamlearn.trainer.intake.merge import Merge
from streamlearn.trainer.intake.message import Message, Reached
from streamlearn.trainer.intake.step_cutter import Counts, StepCutter, marked_rows
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.step import Step
from streamlearn.versions import TimeSkip
from streamlearn.versions.format.manifest import OriginSkip, Skip
from tests.campaign import examples
from tests.trainer.stream import STEP_MS, T_MS, learnable_app, messages_of

_APP = learnable_app()
_PARTITIONS = 2
Messages = list[tuple[int, SampleBatch]]
# A row of a step: whose it is, and the bits of what is learned and corrected.
Row = tuple[tuple[int, int, int], int, int]


@dataclass(frozen=True)
class Case:
    """Messages in the order they are learned, and how."""

    messages: Messages
    rows_max: int
    horizon_ms: int
    skips: tuple[Skip, ...]

    def stepping(self, remembered: SharedMarks) -> StepCutter:
        return StepCutter(remembered, self.rows_max, self.skips, self.horizon_ms)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count, rows = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    messages = messages_of(_APP, count, rows, seed=draw(st.integers(0, 1_000)))
    # Messages that come again much later, when some of their rows are too old.
    for at in draw(st.lists(st.integers(0, len(messages) - 1), max_size=4)):
        partition, batch = messages[at]
        newest = messages[-1][1].header
        messages.append((partition, replace(batch, header=newest)))
    skips: list[Skip] = []
    if draw(st.booleans()):
        begin_ms = T_MS + draw(st.integers(0, count)) * STEP_MS
        skips.append(TimeSkip(begin_ms=begin_ms, end_ms=begin_ms + STEP_MS // 2))
    if draw(st.booleans()):
        number = draw(st.integers(0, count))
        skips.append(OriginSkip(topic_id="topic", partition=number % 4, begin=number * 100, end=number * 100 + 2))
    horizon_ms = draw(st.sampled_from([0, STEP_MS // 2, 3 * STEP_MS, 10**9]))
    return Case(messages, draw(st.integers(1, 30)), horizon_ms, tuple(skips))


def plainly(case: Case) -> tuple[list[list[Row]], Counts]:
    """All steps, the last one as far as it is filled, as a dict of what is known says."""
    known: dict[tuple[tuple[int, int, int], int], int] = {}
    steps: list[list[Row]] = [[]]
    counts, highest = Counts(), dict[int, int]()
    for _, batch in case.messages:
        watermark_ms = min(highest.values()) if len(highest) == batch.header.lots_count else None
        for row in range(len(batch)):
            request = int(batch.request_index[row])
            shown_ms = int(batch.requests.event_time_ms[request])
            origin = int(batch.requests.partition[request]), int(batch.requests.offset[request])
            identity = (*origin, int(batch.item_index[row]))
            counts.read += 1
            if watermark_ms is not None and shown_ms < watermark_ms - case.horizon_ms:
                counts.old += 1
                continue
            is_skipped = any(_is_within(skip, origin, shown_ms) for skip in case.skips)
            learn = correct = 0
            for bit, label in enumerate(batch.labels):
                if not label.settles[row]:
                    continue
                before, value = known.get((identity, bit)), int(label.value[row])
                if is_skipped:
                    known[identity, bit] = 2
                elif before is None:
                    learn |= 1 << bit
                    known[identity, bit] = value
                elif before == 0 and value:
                    correct |= 1 << bit
                    known[identity, bit] = 1
            counts.skipped += is_skipped
            if learn or correct:
                steps[-1].append((identity, learn, correct))
                if len(steps[-1]) == case.rows_max:
                    steps.append([])
            elif not is_skipped:
                counts.dropped += 1
        lot = batch.header.lot
        highest[lot] = max(highest.get(lot, 0), batch.header.watermark_ms)
    return [step for step in steps if step], counts


def _is_within(skip: Skip, origin: tuple[int, int], shown_ms: int) -> bool:
    if isinstance(skip, TimeSkip):
        return skip.begin_ms <= shown_ms < skip.end_ms
    return origin[0] == skip.partition and skip.begin <= origin[1] < skip.end


def rows_in(step: Step) -> list[Row]:
    found: list[Row] = []
    for piece in step.pieces:
        assert len(piece) > 0
        requests, of = piece.batch.requests, piece.batch.request_index
        for row, learn, correct in zip(piece.rows.tolist(), piece.learn.tolist(), piece.correct.tolist(), strict=True):
            identity = int(requests.partition[of[row]]), int(requests.offset[of[row]]), int(piece.batch.item_index[row])
            found.append((identity, learn, correct))
    return found


def beginning() -> Reached:
    return Reached((0,) * _PARTITIONS, (None,) * _PARTITIONS)


def stepped(case: Case, stepping: StepCutter, reached: Reached) -> Iterator[Step]:
    """Steps of all messages from somewhere on, in the order they were written; the last is what is left."""
    merge, offsets = Merge(reached), [0] * _PARTITIONS
    for partition, batch in case.messages:
        offset, offsets[partition] = offsets[partition], offsets[partition] + 1
        if offset < reached.offsets[partition]:
            continue
        message = Message(partition, offset, 1, batch)
        merge.put(message)
        assert merge.take(wait=False) is message
        before = merge.reached
        merge.consume(message)
        yield from stepping.add(message, before, merge.reached)
    if stepping.has_more:
        yield stepping.flush(merge.reached)


def new_marks() -> SharedMarks:
    return SharedMarks(len(_APP.labels), MarksSettings())


@settings(max_examples=examples(60))
@given(cases())
def test_steps_are_what_a_dict_of_all_that_is_known_says(case: Case) -> None:
    stepping = case.stepping(new_marks())
    steps = list(stepped(case, stepping, beginning()))
    expected, counts = plainly(case)
    assert [found for found in map(rows_in, steps) if found] == expected
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert all(len(step) == case.rows_max for step in steps[:-1])
    assert stepping.counts == counts
    assert sum(step.read for step in steps) == counts.read


@settings(max_examples=examples(40))
@given(cases(), st.data())
def test_restarts_at_any_step_boundary_change_no_step(case: Case, data: st.DataObject) -> None:
    expected, _ = plainly(case)
    found: list[list[Row]] = []
    reached, saved = beginning(), dict[str, bytes]()
    while True:
        remembered = new_marks()
        if saved:
            assert remembered.load(saved) == reached
        life = data.draw(st.integers(1, 5))
        # The stages are ahead: steps that were read are not all learned when a version is cut.
        ahead = data.draw(st.integers(0, 3))
        steps = stepped(case, case.stepping(remembered), reached)
        learned, waiting = _learned(steps, life, ahead)
        if not learned:
            break
        for step in learned:
            found.append(rows_in(step))
            remembered.acknowledge(step.number)
        reached = learned[-1].reached
        if reached.watermark_ms is not None:
            remembered.forget(reached.watermark_ms - case.horizon_ms)
        saved = remembered.save(reached)
        assert waiting <= ahead
    assert [rows for rows in found if rows] == expected


def _learned(steps: Iterator[Step], life: int, ahead: int) -> tuple[Sequence[Step], int]:
    """The first steps of a life, and how many were read beyond them."""
    read = [step for step, _ in zip(steps, range(life + ahead), strict=False)]
    return read[:life], max(0, len(read) - life)


def test_a_step_has_a_message_once_however_many_of_its_rows_were_known() -> None:
    """Its requests then are the same users, whatever was learned before a restart."""
    messages = messages_of(_APP, 3, 40)
    case = Case(messages, 32, 10**9, ())
    whole = [[len(piece) for piece in step.pieces] for step in stepped(case, case.stepping(new_marks()), beginning())]
    for known in (7, 15, 32):
        remembered = new_marks()
        first = StepCutter(remembered, known, (), 10**9)
        step = next(stepped(case, first, beginning()))
        remembered.acknowledge(step.number)
        again = list(stepped(case, case.stepping(remembered), beginning()))
        for step in again:
            assert len({id(piece.batch) for piece in step.pieces}) == len(step.pieces)
        if known == 32:
            assert [[len(piece) for piece in step.pieces] for step in again] == whole[1:]


def test_skipped_rows_make_no_version_larger_however_many_come_before_a_step_is_full() -> None:
    messages = messages_of(_APP, 40, 20)
    skip = TimeSkip(begin_ms=T_MS + 2 * STEP_MS, end_ms=T_MS + 1_000 * STEP_MS)
    case = Case(messages, 16, 10**9, (skip,))
    remembered = new_marks()
    stepping = case.stepping(remembered)
    steps = []
    for step in stepped(case, stepping, beginning()):
        if len(step) == case.rows_max:
            steps.append(step)
            remembered.acknowledge(step.number)
    held = remembered.bytes
    assert stepping.counts.skipped > 600
    alone = new_marks()
    few = Case(messages[: steps[-1].reached.offsets[0] + steps[-1].reached.offsets[1] + 1], 16, 10**9, (skip,))
    for step in stepped(few, few.stepping(alone), beginning()):
        if len(step) == few.rows_max:
            alone.acknowledge(step.number)
    assert held == alone.bytes
    saved, expected = remembered.save(steps[-1].reached), alone.save(steps[-1].reached)
    assert {name: len(data) for name, data in saved.items()} == {name: len(data) for name, data in expected.items()}


def test_rows_that_were_refused_fill_no_step_again() -> None:
    case = Case(messages_of(_APP, 4, 10), 8, 10**9, ())
    remembered = new_marks()
    stepping = case.stepping(remembered)
    first = next(stepped(case, stepping, beginning()))
    for piece in first.pieces:
        remembered.refuse(first.number, marked_rows(piece.batch, piece.rows))
    remembered.acknowledge(first.number)
    again = case.stepping(remembered)
    rest = [row for step in stepped(case, again, beginning()) for row in rows_in(step)]
    refused = {identity for identity, _, _ in rows_in(first)}
    assert len(refused) == 8
    assert not refused & {identity for identity, _, _ in rest}
    assert again.counts.dropped >= 8
