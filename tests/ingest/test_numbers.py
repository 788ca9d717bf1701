"""Labels that are numbers, from events to what a step learns: every number is learned once, and then what it became."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.events import EventDecoder, Producer
from streamlearn.events.encoder import EventEncoder
from streamlearn.features import Label, LabelGroup, Number
from streamlearn.ingest import JoinCore, JoinPlan
from streamlearn.ingest.join.columns import LetterKind
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.schemas import action_schema
from streamlearn.settings import EventSettings
from streamlearn.settings.events import SampleSettings
from streamlearn.settings.join import JoinSettings, MarksSettings
from streamlearn.testing import small_app, small_impression
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.intake.message import Message, Reached
from streamlearn.trainer.intake.step_cutter import StepCutter
from streamlearn.trainer.shared_marks import SharedMarks
from tests.campaign import examples
from tests.ingest.place import T_MS, Place, memory_root
from tests.ingest.week import read_week
from tests.ingest.world import Done as Did
from tests.ingest.world import Shown, columns_of_actions, columns_of_impressions

WAIT_S, WINDOW_S = 60, 600
MINUTES = Number(missing=0, combine="sum", high=50)
STARS = Number(missing="unlabelled", low=1, high=5, center=3)
BEST = Number(missing=-1, combine="max")


def app_of() -> App:
    """The small application with a click, minutes that are corrected, and stars and a best price that are not."""
    groups = (LabelGroup("fast", WAIT_S, WINDOW_S), LabelGroup("slow", 3_600, 3_600))
    labels = (
        Label("click", "watch", "fast"),
        Label("minutes", "watch", "fast", number=MINUTES),
        Label("stars", "rate", "slow", number=STARS),
        Label("best", "bid", "slow", number=BEST),
    )
    return replace(small_app(), groups=groups, labels=labels)


@dataclass
class Done:
    """An action on the first item of a request."""

    request: int
    kind: str
    after_s: int
    value: float
    times: int = 1


@dataclass
class World:
    """Events of one application in topics, and what is learned of them."""

    place: Place
    learned: dict[tuple[int, int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    target: dict[tuple[int, int, str], float] = field(default_factory=dict)

    @classmethod
    def make(cls) -> World:
        place = Place.make(memory_root())
        return cls(replace(place, folder=replace(place.folder, app=app_of())))

    def samples(self, requests: int, actions: list[Done]) -> list[SampleBatch]:
        """All samples of some requests and actions, as a trainer reads them."""
        shown = [small_impression(seed) | {"event_time_ms": T_MS + seed * 1_000} for seed in range(requests)]
        with self.place.producer() as producer:
            for given in shown:
                producer.impression(**given)
            for done in sorted(actions, key=lambda one: one.request * 1_000 + one.after_s * 1_000):
                given = shown[done.request]
                at_ms, item = given["event_time_ms"] + done.after_s * 1_000, given["items"][0]["video_id"]
                for _ in range(done.times):
                    producer.action(given["request_id"], at_ms, item, done.kind, value=done.value)
            producer.end(T_MS + 10**8)
        week, codec = read_week(self.place), SampleCodec(app_of(), SampleSettings())
        with week.maker(self.place.folder) as maker:
            made = [batch for lot, joined in week.joined() for batch in maker.make(lot, joined, 1 << 50)]
        return [codec.decode(codec.encode(batch)) for batch in made]

    def learn(self, samples: list[SampleBatch], marks: SharedMarks) -> None:
        """Book what the steps of some samples learn, and what they take back."""
        app = app_of()
        cutter = StepCutter(marks, 7, (), 1 << 50)
        position = Reached((0,), (None,), None)
        steps = [step for batch in samples for step in cutter.add(Message(0, 0, 0, batch), position, position)]
        steps.append(cutter.flush(position))
        for step in steps:
            columns = columns_of(step)
            for row, identity in enumerate(columns.identity.tolist()):
                for bit, label in enumerate(app.labels):
                    key = (identity, bit, label.name)
                    if label.number is None or columns.numbers is None or columns.before is None:
                        continue
                    now = float(columns.numbers[row, bit])
                    if columns.learn[row] >> bit & 1:
                        self.learned[key].append(now)
                    if columns.correct[row] >> bit & 1:
                        self.learned[key] += [-float(columns.before[row, bit]), now]
                        assert self.target[key] == float(columns.before[row, bit])
                    if (columns.learn[row] | columns.correct[row]) >> bit & 1:
                        self.target[key] = now

    def totals(self) -> dict[str, list[float]]:
        """By label, the sums of what was learned and taken back, largest first."""
        sums: dict[str, list[float]] = defaultdict(list)
        for (*_, name), numbers in self.learned.items():
            sums[name].append(round(sum(numbers), 3))
        return {name: sorted(found, reverse=True) for name, found in sums.items()}


def expected(requests: int, actions: list[Done]) -> dict[str, list[float]]:
    """What the numbers of all items are in the end."""
    found: dict[str, list[float]] = {"minutes": [], "stars": [], "best": []}
    for request in range(requests):
        mine = {(one.kind, one.after_s, one.value) for one in actions if one.request == request}
        watched = [value for kind, after_s, value in mine if kind == "watch" and after_s <= WINDOW_S]
        rated = sorted((after_s, value) for kind, after_s, value in mine if kind == "rate")
        bids = [value for kind, _, value in mine if kind == "bid"]
        found["minutes"] += [min(50.0, sum(watched)), 0.0]  # the second item of each request has no action
        found["best"] += [max(bids, default=-1.0), -1.0]
        if rated:
            found["stars"].append(min(5.0, max(1.0, rated[-1][1])))
    return {name: sorted(numbers, reverse=True) for name, numbers in found.items() if numbers}


ACTIONS = st.builds(
    Done,
    request=st.integers(0, 4),
    kind=st.sampled_from(["watch", "rate", "bid"]),
    after_s=st.sampled_from([0, 30, 60, 61, 200, 599, 600]),
    value=st.sampled_from([0.0, 0.5, 2.0, 7.0, 40.0]),
    times=st.integers(1, 2),
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(ACTIONS, max_size=14), st.booleans())
def test_what_is_learned_of_an_item_is_in_the_end_the_number_of_its_actions(actions: list[Done], again: bool) -> None:
    world = World.make()
    try:
        samples = world.samples(5, actions)
        marks = SharedMarks.of(app_of(), MarksSettings())
        world.learn(samples * 2 if again else samples, marks)
    finally:
        world.place.close()
    assert world.totals() == expected(5, actions)


def test_what_was_learned_survives_a_save_of_marks() -> None:
    actions = [Done(0, "watch", 30, 2.0), Done(0, "watch", 200, 7.0), Done(1, "rate", 30, 4.0)]
    world = World.make()
    samples = world.samples(2, actions)
    marks, position = SharedMarks.of(app_of(), MarksSettings()), Reached((0,), (None,), None)
    world.learn(samples, marks)
    marks.acknowledge(1 << 40)
    restored = SharedMarks.of(app_of(), MarksSettings())
    restored.load(marks.save(position))
    before = world.totals()
    world.learn(samples, restored)
    world.place.close()
    assert world.totals() == before == expected(2, actions)


def test_a_value_is_asked_for_where_a_label_is_made_of_it_and_refused_where_none_is() -> None:
    world = World.make()
    shown = small_impression(1)
    item = shown["items"][0]["video_id"]
    with world.place.producer() as producer:
        producer.impression(**shown)
        for value, words in ((None, "'rate' has no value"), (float("inf"), "not finite"), ("5", "a number")):
            with pytest.raises(BadRecord, match=words):
                producer.action("q1", shown["event_time_ms"], item, "rate", value=value)  # type: ignore[arg-type]
    plain = replace(world.place, folder=replace(world.place.folder, app=small_app()))
    with pytest.raises(BadRecord, match="no label of app 'small' is a number"), _producer_of(plain) as producer:
        producer.action("q1", shown["event_time_ms"], item, "click", value=1.0)
    world.place.close()


def _producer_of(place: Place) -> Producer:
    return Producer(place.folder, impressions=place.impressions, actions=place.actions)


def test_actions_of_before_an_application_had_numbers_are_read_and_have_none() -> None:
    old = small_app()
    given = {"request_id": "q", "event_time_ms": T_MS, "item_id": 7, "action": "watch", "weight": 1.0}
    values = [
        EventEncoder(old, EventSettings()).action(given),
        EventEncoder(app_of(), EventSettings()).action(given | {"value": 2}),
    ]
    decoder = EventDecoder(app_of(), EventSettings(), [action_schema(old)])
    actions = decoder.decode(values).actions
    given_by = dict(zip(actions.record_index.tolist(), actions.columns["value?"].tolist(), strict=True))
    assert given_by == {0: 0, 1: 1}
    assert actions.columns["value"][actions.columns["value?"] == 1].tolist() == [2.0]


def test_more_actions_than_a_number_can_be_made_of_are_dead_letters() -> None:
    plan = JoinPlan.of(app_of(), "topic", JoinSettings())
    core, many = JoinCore(plan), 1_030
    core.add_impressions(columns_of_impressions([Shown("q", 0, 0, 0, 0, (7,), b"x")]))
    done = [Did("q", 1 + at, 0, at, 0, 7, "watch") for at in range(many)]
    columns = columns_of_actions(plan, done)
    core.add_actions(replace(columns, values=np.full(many, 0.5, np.float32)))
    core.advance(3_600_000 * 24)
    joined = core.take(10_000)
    counters = core.counters
    assert (counters["actions_combined"], counters["actions_excess"]) == (1_023, many - 1_024)
    assert [LetterKind(int(kind)) for kind in joined.letters.kind] == [LetterKind.ACTION_EXCESS] * (many - 1_024)
    minutes = app_of().label_names.index("minutes")
    assert joined.rows.numbers[:, minutes].max() == 512.0


def test_an_item_whose_action_has_no_value_is_not_learned_as_missing() -> None:
    plan = JoinPlan.of(app_of(), "topic", JoinSettings())
    core = JoinCore(plan)
    core.add_impressions(columns_of_impressions([Shown("q", 0, 0, 0, 0, (7, 8), b"x")]))
    core.add_actions(columns_of_actions(plan, [Did("q", 1, 0, 0, 0, 7, "watch")]))
    core.advance(60_001)
    rows = core.take(10).rows
    click, minutes = (np.uint32(1 << app_of().label_names.index(name)) for name in ("click", "minutes"))
    assert [bool(settles & minutes) for settles in rows.settles] == [False, True]
    assert [bool(labels & click) for labels in rows.labels] == [True, False]
    assert core.counters["actions_valueless"] == 1
