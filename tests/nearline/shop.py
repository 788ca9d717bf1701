"""An application with lists of candidates, what its users do, and nodes that tests make up."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from streamlearn.apps import App, AppFolder
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.events import Producer
from streamlearn.events.decoder import EventDecoder
from streamlearn.features import Dense, FeatureSpec, Since, Slot, keys_of
from streamlearn.interactions import InteractionBatch, encode_interactions
from streamlearn.nearline.candidate_list import CandidateList
from streamlearn.nearline.nearline_loop import NearlineLoop
from streamlearn.nearline.node_search import Outcome, Unfound
from streamlearn.online import FoldLoop, StateStore, open_state_store
from streamlearn.online.candidate_lists import list_group
from streamlearn.online.state_store import StatePlace
from streamlearn.serving.infer import Tensor
from streamlearn.settings import Settings
from streamlearn.testing import wait_until
from streamlearn.topics import Topic, TopicSettings, create_topic
from tests.serving.item_history import finding_app

PARTITIONS, WAIT_S = 2, 180.0
KINDS = ("click", "impression")


def nearline_app(*, is_text: bool = False) -> App:
    """An application that retrieves, of whose users a column is computed."""
    app = finding_app(is_text=is_text)
    idle = Dense("idle", "user", computed=Since("click"), default=-1)
    assert app.retrieval is not None
    retrieval = replace(app.retrieval, user=("user_id", "country", "idle"))
    return replace(app, features=replace(app.features, dense=(idle,)), retrieval=retrieval)


def key_of(user: int) -> int:
    """The key of a user."""
    return int(keys_of(Slot("user_id", "user"), [user])[0])


@dataclass
class NodeDouble:
    """Answers what `search` says; every ask is noted.

    Attributes:
        asked: The users of each ask, by their ids, with their inputs.
        version: The version that answers.
    """

    version: int = 4
    asked: list[dict[int, dict[str, Tensor]]] = field(default_factory=list)
    search: Callable[[int], Unfound | None] = lambda user: None

    @property
    def read(self) -> FeatureSpec:
        """See `NodeSearch`."""
        towers = nearline_app().towers
        assert towers is not None
        return towers

    def message(self, inputs: tuple[Tensor, ...]) -> bytes:
        """See `NodeSearch`."""
        return pickle.dumps({tensor.name: tensor for tensor in inputs})

    def ask(self, messages: Sequence[bytes]) -> list[Outcome]:
        """See `NodeSearch`."""
        named: list[dict[str, Tensor]] = [pickle.loads(message) for message in messages]
        of_ids = {int(inputs["user_id"].numbers[0]): inputs for inputs in named}
        self.asked.append(of_ids)
        return [(None, "", str(user).encode()) for user in of_ids]

    def lists(self, users: Sequence[int], outcomes: Sequence[Outcome]) -> list[CandidateList | Unfound]:
        """See `NodeSearch`."""
        keys, scores = np.arange(3, dtype=np.uint64), np.array([3.0, 2.0, 1.0])
        found: list[CandidateList | Unfound] = []
        for key, (_, _, user) in zip(users, outcomes, strict=True):
            made = CandidateList(key, self.version, 7, 5, len(self.asked), keys, scores)
            found.append(self.search(int(user or b"0")) or made)
        return found

    @property
    def users(self) -> list[int]:
        """The users who were asked for, one after the other."""
        return [user for of_ids in self.asked for user in of_ids]


@dataclass
class Shop:
    """A running application."""

    folder: AppFolder
    impressions: Topic
    actions: Topic
    store: StateStore
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def shown(self) -> int:
        """The number of impressions in the topic."""
        with self.impressions.reader() as reader:
            values = [value for partition in range(PARTITIONS) for value in reader.read(partition, 0).values]
        return len(EventDecoder.of(self.folder).decode(values).impressions)

    def show(self, *users: int, country: str = "NO") -> None:
        """Show an item to users."""
        now_ms = SYSTEM_CLOCK.wall_ms()
        with Producer(self.folder) as producer:
            for user in users:
                features = {"user_id": user, "country": country}
                producer.impression(f"q{next(self.numbers)}", now_ms, user=features, items=[{"video_id": 1}])

    def act(self, *users: int, kind: str = "click") -> None:
        """Write interactions of users, one message for each partition."""
        keys = np.array([key_of(user) for user in users], np.uint64)
        count = len(users)
        batch = InteractionBatch(
            "user", KINDS, (), 1, np.array([next(self.numbers) for _ in users], np.uint64), keys,
            np.ones(count, np.uint64), np.full(count, KINDS.index(kind), np.uint8),
            np.full(count, 1_700_000_001_000), np.ones(count, np.float32), np.full(count, np.nan, np.float32),
            np.zeros((count, 0), np.int64),
        )  # fmt: skip
        with self.actions.writer() as writer:
            for partition in range(PARTITIONS):
                rows = np.flatnonzero(keys % np.uint64(PARTITIONS) == partition)
                if len(rows):
                    writer.append(partition, [encode_interactions(batch.take(rows))])

    def fold(self) -> None:
        """Fold what was written, so that users' columns can be computed."""
        with FoldLoop(self.folder) as loop:
            wait_until(lambda: not loop.step() and not loop.behind, "folding", WAIT_S)

    def lists(self, *users: int) -> list[bytes | None]:
        """The lists that the store has."""
        group = list_group(self.folder, PARTITIONS)
        return self.store.read([StatePlace(group, key_of(user)) for user in users])


@contextmanager
def open_shop(
    path: Path, url: str = "", root: str = "", *, app: App | None = None, settle_ms: int = 0
) -> Iterator[Shop]:
    """Make the topics of an application and open its store."""
    said = {
        "topics": {"root": root or f"memory://{path.name}-"},
        "features": {"store": url, "reach_s": 60.0},
        "retrieval": {"nearline": "found", "settle_ms": settle_ms},
    }
    folder = AppFolder(app or nearline_app(), path, msgspec.convert(said, Settings))
    settings = TopicSettings(partitions=PARTITIONS, retention_ms=-1)
    made = {name: create_topic(folder.topic_url(name), settings) for name in ("impressions", "interactions")}
    create_topic(folder.topic_url("actions"), settings)
    with open_state_store(folder) as store:
        yield Shop(folder, made["impressions"], made["interactions"], store)


def settle(loop: NearlineLoop) -> None:
    """Step until nothing is left to do."""
    wait_until(lambda: not loop.step() and loop.behind_s == 0, "lists", WAIT_S)
