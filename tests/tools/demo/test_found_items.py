"""Lists that nodes find are held against files: a list that is not what its version says does not pass."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ServiceError
from streamlearn.events import Producer
from streamlearn.models.tf_calls import Place
from streamlearn.replay import Replayer, load_history, open_replay_topics
from streamlearn.serving.node import Node
from streamlearn.testing import wait_until
from streamlearn.topics import create_topic
from streamlearn.versions import Chain
from tests.library.trained import write_items
from tests.serving.test_trained_retrieval import SETTINGS, learn, written
from tests.trainer.processes import write_app
from tests.trainer.runs import store_of
from tests.trainer.stream import learnable_app
from tools.chaos.answer_log import AnswerLog
from tools.chaos.finder import Finder, finding_copy
from tools.demo import Loop
from tools.demo.found_items import VersionItems, find, retrieval_of, user_of
from tools.demo.new_item import items_of

APP = """
import sys
from dataclasses import replace

sys.path.insert(0, {{root!r}})
from streamlearn.features import Library, Retrieval
from tests.trainer.stream import learnable_app

app = replace(learnable_app(), model={{model!r}})
app = replace(app, retrieval={retrieval!r})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    """An application that has learned, with versions 1 and 2."""
    retrieval = retrieval_of(learnable_app())
    assert (retrieval.user, retrieval.item) == (("user_id", "history"), ("video_id", "tags"))
    path, text = tmp_path_factory.mktemp("app") / "app", APP.format(retrieval=retrieval)
    folder = write_app(path, SETTINGS, model="logistic", text=text)
    create_topic(folder.topic_url("items"), folder.topic_settings("items", 2), folder.access).close()
    write_items(folder, [(item, 1, item) for item in range(9_000, 9_012)])
    written(folder, 0, 99)
    learn(folder)
    return folder


@pytest.fixture(scope="module")
def node(folder: AppFolder) -> Iterator[Node]:
    with Node(folder, places=[Place("/CPU:0")]) as node:
        node.wait_ready()
        yield node


def test_a_list_passes_only_if_it_is_what_a_scan_of_the_files_finds(folder: AppFolder, node: Node) -> None:
    store, name = store_of(folder), folder.app.name
    items, first = (VersionItems(folder.app, store, version) for version in (Chain.find(store, name).version, 1))
    assert len(items.ids) > 100
    assert node.http is not None
    for user_id, watched, exclude in ((1, [], []), (7, [9_001, 9_002], [9_003]), (499, [5], items.ids[:50])):
        user = user_of(folder.app, user_id, watched)
        found = find(node.http, user, 20, exclude=exclude)
        assert items.wrong(found) == ""
        # What a node found is not what another user, or another version, finds.
        assert "scores differ" in items.wrong(found._replace(user=user_of(folder.app, user_id + 1, watched)))
        assert "has no item" in first.wrong(found)
        # An item that is left out, found twice, excluded, or changed for a worse one is noticed.
        worst = min({*items.ids} - {*exclude} - {*found.ids})
        for ids, scores, what in (
            (found.ids[1:], found.scores[1:], "expected 20"),
            ((*found.ids[:-1], found.ids[0]), found.scores, "19 distinct"),
            ((worst, *found.ids[1:]), found.scores, "from the products of its items"),
            (found.ids[::-1], found.scores[::-1], "from the highest products"),
        ):
            assert what in items.wrong(found._replace(ids=ids, scores=scores)), what
        assert "expected 20" in items.wrong(found._replace(exclude=[*exclude, found.ids[0]]))
    with pytest.raises(ServiceError, match="refuses: "):
        find(node.http, user, 0)
    with pytest.raises(ServiceError, match="no answer"):
        find("127.0.0.1:1", user, 1)


def test_a_finder_names_lists_that_no_version_explains_and_leaves_out_those_of_another_application(
    folder: AppFolder, node: Node
) -> None:
    loop, log = cast("Loop", SimpleNamespace(http=[node.http], token=None)), AnswerLog(folder.app)
    with closing(Finder(loop, folder, log, 1)) as finder:
        wait_until(lambda: sum(map(len, finder.lists.values())) >= 4, "lists", 60)
    assert [*finder.violations(store_of(folder))] == []
    ((version, lists),) = finder.lists.items()
    first = next(number for number, one in enumerate(lists) if len(one.ids) > 1)
    lists[first] = lists[first]._replace(ids=lists[first].ids[::-1])
    (violation,) = finder.violations(store_of(folder))
    assert f"other items than a scan: version {version}: scores differ" in violation
    finder.ids[version].add(123_456)
    assert next(finder.violations(store_of(folder))).startswith(f"version {version} has no item 123456")
    log.is_paused = True
    with closing(Finder(loop, folder, log, 1)) as finder:
        answered = requests_of(node)
        wait_until(lambda: requests_of(node) >= answered + 2, "requests", 60)
    assert not finder.lists
    assert not finder.ids
    assert [*finder.violations(store_of(folder))] == ["no node found an item"]


def requests_of(node: Node) -> float:
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=60) as page:
        (count,) = re.findall(r"^streamlearn_retrieval_requests_total (\S+)$", page.read().decode(), re.MULTILINE)
    return float(count)


def test_the_copy_of_an_application_declares_retrieval(tmp_path: Path) -> None:
    app = load_app(finding_copy(Path("examples/kuairand"), tmp_path)).app
    assert app.retrieval is not None
    assert (app.retrieval.user, app.name) == (("user_id", "watched"), "kuairand")


def test_items_that_were_shown_are_distinct_and_have_their_features(tmp_path: Path) -> None:
    folder = load_app(Path("examples/kuairand"), (f"topics.root=file://{tmp_path}/topics", "replay.partitions=1"))
    with open_replay_topics(folder) as topics, Producer(folder, impressions=topics[0], actions=topics[1]) as producer:
        Replayer(load_history(folder.folder, {}), producer, folder.settings.replay).run(events_max=300)
    items = items_of(folder, 50)
    assert len({item for item, _ in items}) == len(items) == 50
    _, features = items[0]
    assert {*features} == {
        "author_id",
        "music_id",
        "tags",
        "music_type",
        "video_type",
        "duration_bucket",
        "duration",
    }
    assert isinstance(features["tags"], list)
    assert isinstance(features["video_type"], str)
