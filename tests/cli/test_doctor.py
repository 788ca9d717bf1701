"""`streamlearn doctor --app`: an application's schemas and topics, each place tried once and soon given up."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamlearn.apps import AppFolder, load_app
from streamlearn.cli.doctor.app_findings import app_findings, durability_findings
from streamlearn.cli.doctor.machine_findings import Finding, machine_findings
from streamlearn.given_up import GivenUpFile, GivenUpProcess
from streamlearn.ingest import ProgressLog, begin_run
from streamlearn.online import FoldLoop
from streamlearn.publisher import Lineage
from streamlearn.samples import SampleCodec
from streamlearn.settings.versions import RegistrySettings
from streamlearn.testing import small_batch, wait_until
from streamlearn.topics import TopicSettings, create_topic
from streamlearn.topics.settings import Durability
from streamlearn.versions import Cut, Node, Registry, VersionWriter, open_registry, open_store
from tests.online.shop import some, topic_of, write
from tools.services import Kafka

__all__: list[str] = []

_CHANGED = """
from dataclasses import replace
from streamlearn.testing import small_app
app = small_app()
app = replace(app, {change})
"""


def _found(small: Path, *overrides: str) -> dict[str, Finding]:
    # People wait for 3 s; a loaded machine may need longer.
    return {finding.what: finding for finding in app_findings(small, ["topics.reach_s=120", *overrides])}


def test_topics_never_made_are_missing_and_not_wrong(small: Path) -> None:
    found = _found(small)
    assert found["event schemas"].state == "ok"
    assert found["topic impressions"].state == found["topic progress"].state == "missing"
    assert "--create" in found["topic impressions"].help
    assert not any(finding.state == "wrong" for finding in found.values())


def test_a_part_of_the_topics_is_wrong_for_nothing_runs_on_it(small: Path) -> None:
    folder = load_app(small)
    for name in ("impressions", "actions", "samples"):
        create_topic(folder.topic_url(name), TopicSettings(partitions=2)).close()
    found = _found(small)
    assert found["topic progress"].state == found["topic dead_letters"].state == "missing"
    assert found["topics"].state == "wrong"
    assert "but not progress, dead_letters" in found["topics"].detail
    assert "--create" in found["topics"].help


def test_the_last_line_says_what_the_status_is_of(
    small: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "streamlearn.cli.doctor.machine_findings.machine_findings", lambda: iter([Finding("gpu", "missing", "none")])
    )
    done = verb("doctor", "--app", small)
    assert done.exit_code == 0
    summary = "nothing is wrong; missing but optional: gpu, topic impressions, topic actions, "
    assert done.stdout.splitlines()[-1].startswith(summary)
    folder = load_app(small)
    create_topic(folder.topic_url("impressions"), TopicSettings(partitions=2)).close()
    done = verb("doctor", "--app", small)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1].startswith(
        "fix what is wrong: topics; missing but optional: gpu, topic actions, "
    )


def test_a_node_without_heartbeat_is_wrong(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(url: str, name: str, settings: RegistrySettings) -> Registry:
        return open_registry(url, name, structs.replace(settings, node_ttl_s=0.05))

    monkeypatch.setattr("streamlearn.cli.doctor.app_findings.open_registry", impatient)
    folder = load_app(small)
    with impatient(folder.registry_url, folder.app.name, folder.settings.registry) as registry:
        registry.beat(Node(boot_id="a", name="node-1", state="ready", active=4))
        wait_until(registry.silent, "it falls silent")
    [found] = [one for name, one in _found(small).items() if name.startswith("registry")]
    assert (found.state, found.detail) == ("wrong", "no version is active, 0 nodes; no heartbeat from node-1")


def test_a_process_that_was_given_up_is_wrong(small: Path) -> None:
    GivenUpFile(small).write([GivenUpProcess("ingest", "status 2", "/logs/ingest.log", 1_000, os.getpid())])
    found = _found(small)["process ingest"]
    assert (found.state, found.detail) == ("wrong", "`up` gave it up (status 2)")
    assert "/logs/ingest.log" in found.help


def test_an_application_is_compared_with_what_it_has_made(small: Path, tmp_path: Path) -> None:
    folder = load_app(small)
    create_topic(folder.topic_url("samples"), TopicSettings(partitions=2)).close()
    found = _found(small)
    assert found["newest samples"].detail == "there are none yet"
    assert {name.split()[0] for name in found} >= {"store", "registry"}
    assert not any(finding.state == "wrong" for name, finding in found.items() if name != "topics"), found
    with folder.open_topic("samples") as topic, topic.writer() as writer:
        batch = small_batch(folder.app, requests=2, rows=4)
        writer.append(0, [SampleCodec(folder.app, folder.settings.samples).encode(batch)])
    versions = open_store(folder.store_url)
    lineage = Lineage.of(folder)
    version = VersionWriter(versions, lineage.head(run=1, version=1, parent=None))
    version.add_rows([])
    version.finish(Cut())
    found = _found(small)
    assert "features, labels and windows" in found["newest samples"].detail
    assert "version 1 has the application's" in " ".join(finding.detail for finding in found.values())
    for change, said in (
        ("labels=tuple(replace(label, name=f'{label.name}_') for label in app.labels)", "labels"),
        ("groups=tuple(replace(group, window_s=group.window_s + 1) for group in app.groups)", "windows"),
    ):
        changed = tmp_path / f"changed-{said}"  # a module is loaded once for each path
        shutil.copytree(small, changed)
        (changed / "app.py").write_text(_CHANGED.format(change=change))
        found = _found(changed)
        wrong = [finding.detail for finding in found.values() if finding.state == "wrong"]
        assert sum(said in detail for detail in wrong) == 2, (change, wrong)


def test_topics_that_lose_records_with_a_broker_are_named() -> None:
    safe, single = (Durability(replicas=count, in_sync_min=min(2, count), unclean=False) for count in (3, 1))
    durable = {
        "impressions": safe,
        "actions": replace(safe, in_sync_min=1),
        "samples": replace(safe, unclean=True),
        "progress": single,
        "dead_letters": None,
    }
    found = {finding.what: finding for finding in durability_findings(durable)}
    assert {what: finding.state for what, finding in found.items()} == {
        "unclean elections": "wrong",
        "replicas in sync": "wrong",
        "replicas": "missing",
    }
    assert "enable=true for samples:" in found["unclean elections"].detail
    assert "replicas=1 for actions:" in found["replicas in sync"].detail
    assert "1 for progress:" in found["replicas"].detail
    assert not list(durability_findings({"impressions": safe, "dead_letters": None}))


def test_a_topic_of_one_replica_is_no_failure_and_its_risk_is_named(
    kafka: Kafka, small: Path, verb: Callable[..., Any]
) -> None:
    root = f"topics.root=kafka://{kafka.address}"
    assert verb("topics", small, "--create", "1", "--set", root).exit_code == 0
    found = _found(small, root)
    assert {what for what, finding in found.items() if finding.state != "ok"} == {"replicas"}
    assert found["replicas"].state == "missing"
    assert "1 for impressions, actions, samples, progress, dead_letters: " in found["replicas"].detail
    assert verb("topics", small, "--delete", "--yes", "--set", root).exit_code == 0


def test_a_broker_that_does_not_answer_is_wrong_and_asked_once(small: Path) -> None:
    begin = time.monotonic()
    found = _found(small, "topics.root=kafka://127.0.0.1:1", "topics.reach_s=0.3")
    assert time.monotonic() - begin < 60  # of the 120 that are usual here
    topics = [finding for what, finding in found.items() if what.startswith("topic ")]
    assert [finding.state for finding in topics] == ["wrong"] * 5
    assert ["not checked" in finding.detail for finding in topics] == [False, True, True, True, True]


def test_impressions_and_actions_of_different_partitions_are_wrong(small: Path) -> None:
    folder = load_app(small)
    for name, count in (("impressions", 2), ("actions", 3)):
        create_topic(folder.topic_url(name), TopicSettings(partitions=count)).close()
    found = _found(small)
    assert found["topic actions"].detail.endswith("3 partitions")
    assert found["partitions"].detail == "impressions has 2, actions has 3"
    assert found["partitions"].state == "wrong"


def test_a_running_ingest_whose_events_become_dead_letters_is_wrong(small: Path) -> None:
    folder = load_app(small)
    for name in folder.topics:
        create_topic(folder.topic_url(name), folder.topic_settings(name, 1)).close()
    run = begin_run(folder)
    for share, state in ((0.04, None), (0.4, "wrong")):
        with ProgressLog.open(folder.topic_url("progress"), folder.access) as log:
            log.write(run.run, run.lineage, {}, dead_share=share)
        finding = _found(small).get("dead letters")
        assert (finding and finding.state) == state
    assert finding is not None
    assert finding.detail == "40.0% of ingest's recent events became dead letters; at most 5.0% is allowed"
    assert "dead letters" not in _found(small, "ingest.dead_share_max=0.5")


@pytest.fixture
def shop(tmp_path: Path) -> AppFolder:
    """An application with computed columns; its topics and its store are in its folder."""
    declared = "from pathlib import Path\nfrom tests.online.shop import folder_of\n\napp = folder_of(Path('.')).app\n"
    (tmp_path / "app.py").write_text(declared)
    return load_app(tmp_path)


def _states(shop: AppFolder, *overrides: str) -> Finding:
    (found,) = (one for what, one in _found(shop.folder, *overrides).items() if what.startswith("feature states"))
    return found


def test_interactions_that_are_not_folded_are_wrong_until_they_are(shop: AppFolder) -> None:
    assert (_states(shop).state, _states(shop).detail) == ("ok", "the store answers; see topic interactions")
    with topic_of(shop) as topic, FoldLoop(shop) as loop:
        nothing = "user: 0 of 3 partitions claimed, 0 messages left; item: 0 of 3 partitions claimed, 0 messages left"
        assert (_states(shop).state, _states(shop).detail) == ("ok", nothing)
        write(topic, some(20, users=1, items=1))
        found = _states(shop)
        each = "0 of 3 partitions claimed, 2 messages left"
        assert found.detail == f"no interaction is folded (user: {each}; item: {each})"
        assert (found.state, "features fold" in found.help) == ("wrong", True)
        while loop.step():
            pass
        each = "3 of 3 partitions claimed, 0 messages left"
        assert (_states(shop).state, _states(shop).detail) == ("ok", f"user: {each}; item: {each}")


@pytest.mark.parametrize(("count", "state"), [(5_000, "ok"), (5_001, "wrong")])
def test_folding_is_far_behind_with_more_than_ten_thousand_messages(shop: AppFolder, count: int, state: str) -> None:
    with topic_of(shop) as topic, FoldLoop(shop) as loop, topic.writer() as writer:
        write(topic, some(20))
        while loop.step():
            pass
        # Those who fold for users read them, and those who fold for items.
        writer.append(0, [b"a message"] * count)
    found = _states(shop)
    assert (found.state, found.detail.startswith("folding is far behind (")) == (state, state == "wrong")
    assert f"user: 3 of 3 partitions claimed, {count:,} messages left" in found.detail


def test_a_store_of_feature_states_that_is_away_is_wrong(shop: AppFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMLEARN_FEATURES_PASSWORD", "a-secret")
    found = _states(shop, "features.store=redis://127.0.0.1:1")
    assert (found.state, "a-secret" in found.detail) == ("wrong", False)
    assert "the feature states at redis://127.0.0.1:1/0 do not answer" in found.detail


def test_the_store_of_feature_states_is_checked_where_no_topic_answers(shop: AppFolder) -> None:
    found = _states(shop, "topics.root=kafka://127.0.0.1:1", "topics.reach_s=0.3")
    assert (found.state, found.detail) == ("ok", "the store answers; see topic interactions")


def test_an_application_without_computed_columns_has_no_such_finding(small: Path) -> None:
    assert not any("feature" in what for what in _found(small))


def test_a_schema_file_that_is_not_there_is_wrong(small: Path) -> None:
    found = _found(small, 'topics.old_schemas=["gone.avsc"]')
    assert found["event schemas"].state == "wrong"
    assert "gone.avsc" in found["event schemas"].detail


def test_an_address_of_the_environment_is_tried_and_a_bucket_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = "streamlearn.cli.doctor.machine_findings"
    for name in ("COMMANDS", "PACKAGES"):
        monkeypatch.setattr(f"{machine}.{name}", {})
    monkeypatch.setenv("STREAMLEARN_STORE", "s3://models/production")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("STREAMLEARN_REGISTRY", f"redis://user:secret@{address}/0")
        monkeypatch.setenv("STREAMLEARN_KAFKA", "")
        found = [finding for finding in machine_findings() if finding.what.startswith("STREAMLEARN_")]
    assert found == [Finding("STREAMLEARN_REGISTRY", "ok", f"{address} answers")]


def test_tools_of_tests_are_no_concern_of_an_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = "streamlearn.cli.doctor.machine_findings"
    monkeypatch.setattr(f"{machine}.COMMANDS", {"nothing": (["no-such-program"], "do without")})
    assert "nothing" in [finding.what for finding in machine_findings()]
    monkeypatch.setattr("streamlearn.__file__", str(tmp_path / "streamlearn" / "__init__.py"))
    assert "nothing" not in [finding.what for finding in machine_findings()]


def test_a_folder_that_is_no_application_is_one_finding(tmp_path: Path) -> None:
    (finding,) = app_findings(tmp_path, [])
    assert finding.state == "wrong"


def test_a_finding_takes_two_lines_and_settings_can_be_laid_over(
    small: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "streamlearn.cli.doctor.machine_findings.COMMANDS", {"nothing": (["no-such-program"], "do without")}
    )
    done = verb("doctor", "--app", small, "--set", "topics.root=nonsense://")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[lines.index("missing nothing: not on PATH") + 1] == "        do without"
    assert any(line.startswith("wrong   topic impressions: 'nonsense:") for line in lines)
    whats = [finding["what"] for finding in json.loads(verb("doctor", "--app", small, "--json").stdout)]
    assert "nothing" in whats
    assert verb("doctor", "--set", "topics.reach_s=1").exception.exit_code == 2
