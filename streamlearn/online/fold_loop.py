"""FoldLoop: folds all partitions of an application's interactions, in one thread."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import StatesLost, StatesUnreachable, TopicReplaced, UsageError
from streamlearn.features import Entity
from streamlearn.online.fold import Fold, FoldCounts
from streamlearn.online.state_store import GROUP_S, StateGroup, open_state_store
from streamlearn.resource import Resource

__all__ = ["FoldLoop", "computed_entities", "rebuild_states"]

_LOG = logging.getLogger(__name__)
# The wait for interactions where none came, and for a store that does not answer.
_POLL_S, _AWAY_S = 0.02, 1.0
# How often the store is asked whether it still has what was written, and which states are read.
_CHECK_S = 1.0
# States become readable once the log's end of at most so long ago is folded: messages come all the time.
_FILLED_S = 5.0
# The wait of a rebuild for the next interactions, which are there.
_WAIT_MS = 1_000


class FoldLoop(Resource):
    """Folds for each entity of an application.

    Guaranteed: it follows a rebuild to the states that are read from then on. While the store does not answer it waits,
    and says so once. Not guaranteed: that this process is the only one. A newer one ends it with `FoldOver`.

    Raises:
        UsageError: The application has no computed columns.
        TopicMissing: There is no topic of interactions.
    """

    def __init__(self, folder: AppFolder, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder, self._clock, self._is_away, self._check_s = folder, clock, False, 0.0
        entities = computed_entities(folder)
        with ExitStack() as stack:
            self._topic = stack.enter_context(folder.open_topic("interactions"))
            self._reader = stack.enter_context(self._topic.reader())
            self._store = stack.enter_context(open_state_store(folder))
            self._opened = stack.pop_all()
        everything = product(entities, range(self._topic.partitions))
        self._folds: dict[tuple[Entity, int], Fold | None] = dict.fromkeys(everything)
        # Entities that are folded from the beginning: a time, and where the log ended then.
        self._filling: dict[Entity, tuple[float, dict[int, int]]] = {}

    def close(self) -> None:
        """Close the topic and the store."""
        self._opened.close()

    def step(self, beat: Callable[[], None] = lambda: None, stop: threading.Event | None = None) -> bool:
        """Fold what has come to each partition, until `stop` is set; return whether anything had.

        `beat` is called after each partition.

        Raises:
            TopicReplaced: The states are of another topic, which only a rebuild mends.
            StreamlearnError: As `Fold.step`, but for `StatesLost`.
        """
        has_come, now_s = False, self._clock.monotonic_s()
        is_due = now_s >= self._check_s
        for (entity, partition), known in tuple(self._folds.items()):
            if stop is not None and stop.is_set():
                return has_come
            fold = known
            if fold is None or (is_due and self._group(entity) != fold.group):
                fold = self._folds[entity, partition] = self._fold(entity, partition)
            try:
                has_come |= fold.step()
                if is_due:
                    fold.check()
            except StatesLost as error:
                _LOG.warning("%s; %s", error.message, error.help)
                # The others may have been lost as well.
                self._folds |= {place: None for place in self._folds if place[0] == entity}
                has_come = True
            beat()
        self._check_filled()
        if is_due:
            self._check_s = now_s + _CHECK_S
        return has_come

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Fold until `stop` is set, and call `beat` again and again. Raises `FoldOver` if a newer process took over."""
        while not stop.is_set():
            try:
                pause_s = 0.0 if self.step(beat, stop) else _POLL_S
                if self._is_away:
                    _LOG.warning("the feature states at %s answer again", self._store.url)
                self._is_away = False
            except StatesUnreachable as error:
                if not self._is_away:
                    _LOG.error("%s; %s", error.message, error.help)
                self._is_away, pause_s = True, _AWAY_S
            beat()
            if pause_s:
                stop.wait(pause_s)

    @property
    def counts(self) -> FoldCounts:
        """The counts of all partitions."""
        return _sum_of([fold.counts for fold in self._folds.values() if fold is not None])

    @property
    def behind(self) -> int:
        """The number of messages that are not folded yet."""
        return sum(
            self._reader.end(partition) - self._reader.earliest(partition) if fold is None else fold.behind
            for (_, partition), fold in self._folds.items()
        )

    def _fold(self, entity: Entity, partition: int) -> Fold:
        group, settings = self._group(entity), self._folder.settings.features
        share = settings.repeats_max // len(self._folds)
        fold = Fold(self._store, entity, group, self._reader, partition, repeats_max=share, settings=settings)
        if fold.is_first and not group.fills:
            group = replace(group, fills=True)
            self._store.switch(group)
        if group.fills:
            self._filling.setdefault(entity, self._ends())
        return fold

    def _ends(self) -> tuple[float, dict[int, int]]:
        ends = {partition: self._reader.end(partition) for partition in range(self._topic.partitions)}
        return self._clock.monotonic_s(), ends

    def _check_filled(self) -> None:
        """Have states read that were folded from the beginning, and have come to the end of the log."""
        for entity, (noted_s, ends) in tuple(self._filling.items()):
            folds = [self._folds[entity, partition] for partition in ends]
            if any(
                fold is None or fold.standing.position < end for fold, end in zip(folds, ends.values(), strict=True)
            ):
                continue
            if self._clock.monotonic_s() - noted_s > _FILLED_S:
                self._filling[entity] = self._ends()
                continue
            self._store.filled(self._group(entity))
            del self._filling[entity]

    def _group(self, entity: Entity) -> StateGroup:
        name, partitions = self._folder.app.name, self._topic.partitions
        group = self._store.current(name, entity)
        if group is None:
            group = replace(StateGroup.of(name, entity, partitions), fills=True)
            self._store.switch(group)
        if group.partitions != partitions:
            message = f"{self._topic.url} has {partitions} partitions; states of {group.name} are of {group.partitions}"
            raise TopicReplaced(message, help="rebuild them: `streamlearn features rebuild APP`")
        return group


def rebuild_states(
    folder: AppFolder,
    without: tuple[int, int] = (0, 0),
    note: Callable[[str], None] = lambda _: None,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> FoldCounts:
    """Fold the whole topic of interactions into new states, and then have these read instead.

    Interactions of the event times `without`, from the first up to the second, are left out. States that are read
    meanwhile are the old ones; a process that folds follows within a second.

    Raises:
        StatesUnreachable: The store does not answer, or has lost what was folded; the old states stay.
    """
    totals, entities = [], computed_entities(folder)
    with folder.open_topic("interactions") as topic, topic.reader() as reader, open_state_store(folder) as store:
        share = folder.settings.features.repeats_max
        for entity in entities:
            old = store.current(folder.app.name, entity)
            # By chance, so that two rebuilds at once do not meet.
            new = StateGroup.of(folder.app.name, entity, topic.partitions, secrets.randbits(31))
            for partition in range(topic.partitions):
                settings = folder.settings.features
                fold = Fold(
                    store, entity, new, reader, partition, repeats_max=share, settings=settings, without=without
                )
                while fold.behind:
                    fold.step(_WAIT_MS)
                    note(f"{entity.side} states, partition {partition}: {fold.behind} messages are left")
                totals.append(fold.counts)
            store.switch(new)
            if old is not None:
                clock.sleep(2 * GROUP_S)  # until nobody reads them any more
                store.drop(old)
    return _sum_of(totals)


def _sum_of(all_: list[FoldCounts]) -> FoldCounts:
    """Return the sums of counts."""
    total = FoldCounts()
    for counts in all_:
        for name in FoldCounts.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return total


def computed_entities(folder: AppFolder) -> tuple[Entity, ...]:
    """Return an application's entities; raises `UsageError` if it has no computed columns."""
    entities = folder.app.features.entities
    if not entities:
        message = f"app {folder.app.name!r} has no computed columns"
        raise UsageError(message, help="declare one: Slot(..., computed=...) or Dense(..., computed=...)")
    return entities
