"""Ids alone, and recommendations: a node takes what describes items from the library of the version that answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.models.tf_calls import Place
from streamlearn.serving.node import Node
from streamlearn.testing import wait_until
from streamlearn.versions import History, PointerLog
from streamlearn.versions.pointer.moves import rollback
from tests.serving.test_retrieve import asked
from tests.serving.test_trained_retrieval import ADDED, REMOVED, USERS, WAIT_S, WRITTEN, learned
from tests.trainer.runs import store_of

LABELS = ("click", "bought")


def scored(node: Node, user: Any, items: Sequence[Any], **more: Any) -> tuple[int, Any]:
    return asked(node, {"user": user, "items": items, **more}, "/score")


def whole(item: int) -> dict[str, Any]:
    """An item as it was written to the topic of items."""
    return {"video_id": item, "tags": [item % 3], "length": float(item)}


def check_alone(node: Node, items: Sequence[int], **more: Any) -> None:
    """Items without columns have the scores that they have with them."""
    for user in USERS:
        status, expected = scored(node, user, [whole(item) for item in items], **more)
        assert status == 200, expected
        mixed = [whole(item) if item % 2 else {"video_id": item, "length": float(item)} for item in items]
        for sent in ([{"video_id": item} for item in items], mixed):
            status, answer = scored(node, user, sent, **more)
            assert (status, answer["version"], answer["scores"]) == (200, expected["version"], expected["scores"])
        other = [whole(item) | {"length": -50_000.0} for item in items]
        assert scored(node, user, other, **more)[1]["scores"] != expected["scores"]


def check_ranked(node: Node, user: Any, k: int, candidates: int, by: str = "click", **more: Any) -> Any:
    """The answer has the best by score of what the towers of the same version find."""
    body = {"user": user, "k": k, "candidates": candidates, "rank_by": by, **more}
    status, answer = asked(node, body, "/recommend")
    assert status == 200, answer
    at = {"version": answer["version"]}
    _, found = asked(node, {"user": user, "k": candidates, **more, **at})
    ids = [item["id"] for item in found["items"]]
    assert (answer["candidates"], answer["as_of_ms"]) == (len(ids), found["as_of_ms"])
    _, scores = scored(node, user, [{"video_id": item} for item in ids], **at)
    order = np.argsort(-np.array(scores["scores"][by], np.float32), kind="stable")[:k].tolist()
    assert [item["id"] for item in answer["items"]] == [ids[place] for place in order]
    for label in LABELS:
        assert [item["scores"][label] for item in answer["items"]] == [scores["scores"][label][at] for at in order]
    return answer


def test_one_version_retrieves_describes_and_scores_and_a_rollback_takes_all_of_it_back(tmp_path: Path) -> None:
    folder = learned(tmp_path / "app", "two_tower")
    kept = [*set(WRITTEN) - set(REMOVED)]
    with Node(folder, places=[Place("/CPU:0")]) as node:
        node.wait_ready()
        check_alone(node, [*kept, *ADDED])
        check_alone(node, WRITTEN, version=2)
        # An item that has left the library is refused, because nothing says how long it is.
        status, answer = scored(node, USERS[0], [{"video_id": kept[0]}, {"video_id": REMOVED[0]}])
        assert status == 400
        assert "items[1].length: it is missing" in answer["error"]
        assert "the library of version 4 has no such item" in answer["error"]
        assert scored(node, USERS[0], [whole(REMOVED[0]) | {"tags": None}])[1]["unknown"] == 1
        for user in USERS:
            assert check_ranked(node, user, 5, 20)["version"] == 4
            check_ranked(node, user, 3, 3, "bought", exclude=kept)
            assert check_ranked(node, user, 4, 30, version=3)["version"] == 3
        everything = check_ranked(node, USERS[1], 500, 1_000)
        assert not {*REMOVED} & {item["id"] for item in everything["items"]}
        known = History(store_of(folder), folder.app.name).read()
        PointerLog(store_of(folder), folder.app.name).move(partial(rollback, known=known, to=2), by="test")
        body = {"user": USERS[0], "k": 5}
        wait_until(lambda: asked(node, body, "/recommend")[1]["version"] == 2, "the rollback", WAIT_S)
        check_alone(node, WRITTEN)
        everything = check_ranked(node, USERS[1], 500, 1_000)
        assert everything["version"] == 2
        assert {*REMOVED} <= {item["id"] for item in everything["items"]}
        metrics = asked(node, None, "/metrics", "GET")[1]
        assert 'streamlearn_retrieval_filled_candidates_total{library="unknown"} 1.0' in metrics
        filled = metrics.partition('streamlearn_retrieval_filled_candidates_total{library="known"} ')[2]
        assert float(filled.partition("\n")[0]) > 100
