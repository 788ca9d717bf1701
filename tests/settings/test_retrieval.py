"""Settings of retrieval, where a node uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamlearn.apps import AppFolder
from streamlearn.publisher.retrieval_hits import RetrievalHits
from streamlearn.serving import front as front_module
from streamlearn.serving.node_retrieval import NodeRetrieval
from streamlearn.testing import wait_until
from streamlearn.versions import VersionRef, open_store
from tests.nearline.shop import nearline_app
from tests.publisher.test_retrieval_hits import Given, case_of, found
from tests.settings.conftest import Load
from tests.settings.probes import heeds, spied


@heeds("retrieval.lanes", "retrieval.k_max", "retrieval.probes")
def test_a_node_finds_as_many_items_on_as_many_lanes_as_the_settings_say(
    retrieving: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    fronts = spied(monkeypatch, front_module, "native.Front")
    chosen = ("retrieval.lanes=3", "retrieval.k_max=77", "retrieval.probes=5", "serving.users_buckets=[1, 3, 500]")
    folder = retrieving(*chosen)
    tables = [spec.name for spec in folder.app.tables]
    made = NodeRetrieval(folder, open_store(folder.store_url), tables, None, has_lists=True)
    schema, buckets, limits, *_ = fronts[0][0]
    assert json.loads(schema)["items"]["k_max"] == 77
    assert (limits.lanes, len(made._kind.places)) == (3, 3)
    assert made.indexes.probes == 5
    # A request is a user and a candidate, and of users a TensorBatch has few.
    assert buckets == ([1, 3], [1, 3], [1])


@heeds("retrieval.nearline", "retrieval.cache_versions")
def test_a_node_answers_with_lists_of_as_many_versions_as_the_setting_says(retrieving: Load, tmp_path: Path) -> None:
    def made_with(*settings: str) -> NodeRetrieval:
        folder = AppFolder(nearline_app(), tmp_path, retrieving(*settings).settings)
        tables = [spec.name for spec in folder.app.tables]
        return NodeRetrieval(folder, open_store(folder.store_url), tables, None, has_lists=True)

    assert made_with().lists is None
    lists, asked = made_with("retrieval.nearline=found", "retrieval.cache_versions=7").lists, list[int]()
    assert lists is not None

    def usable(count: int) -> tuple[VersionRef, ...]:
        asked.append(count)
        return ()

    lists._usable = usable
    lists.follow()
    try:
        wait_until(lambda: asked, "the versions")
    finally:
        lists.close()
    assert {*asked} == {7}


@heeds("judge.hit_drop_ratio_max")
def test_a_hit_rate_may_fall_by_the_share_of_the_setting(retrieving: Load) -> None:
    fell = found(150, 300, 150, 1_000)  # by half
    for ratio, is_ok in ((0.4, False), (0.6, True), (0, True)):
        settings = retrieving(f"judge.hit_drop_ratio_max={ratio}").settings.judge
        assert RetrievalHits(Given(fell)).judge(case_of(settings)).is_ok is is_ok
    assert not RetrievalHits(Given(fell)).judge(case_of(retrieving().settings.judge)).is_ok
