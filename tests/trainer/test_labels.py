"""Labels of a live model: other names or another order are refused in words; windows may change."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import App, AppFolder
from streamlearn.errors import UnknownSchema, UsageError
from streamlearn.features import Label, LabelGroup
from streamlearn.ps import Epoch
from streamlearn.publisher import Lineage
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.schemas.sample import sample_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.topics import TopicSettings, create_topic
from streamlearn.trainer.evaluation import Evaluation
from streamlearn.trainer.intake.split import SplitRequest, split_of
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.versions import Chain, write_revert
from tests.trainer.runs import local_client, run, state_of, store_of
from tests.trainer.stream import learnable_app, learnable_folder, messages_of, write_messages
from tests.trainer.toy import Toy

Messages = list[tuple[int, SampleBatch]]

_APP = learnable_app()
_CLICK, _BOUGHT = _APP.labels
_FAST, _SLOW = _APP.groups
_CHANGED = {
    "reordered": replace(_APP, labels=(_BOUGHT, _CLICK)),
    "renamed": replace(_APP, labels=(replace(_CLICK, name="share"), _BOUGHT)),
    "added": replace(_APP, labels=(_CLICK, _BOUGHT, Label("view", "view", "fast"))),
    "removed": replace(_APP, labels=(_CLICK,), groups=(_FAST,)),
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "trainer": {"step_rows": 64},
    "publisher": {"publish_interval_s": 3_600},
}


def folder_of(path: Path, app: App = _APP, **trainer: Any) -> AppFolder:
    path.mkdir(exist_ok=True)
    return learnable_folder(path, _SETTINGS | {"trainer": _SETTINGS["trainer"] | trainer}, app)


def newest(folder: AppFolder) -> Any:
    return Chain.find(store_of(folder), folder.app.name).manifest


def write_of_before(folder: AppFolder, messages: Messages) -> None:
    """Append messages as the release before wrote them: a schema of the model's name, a fingerprint without labels."""
    app, codec = folder.app, SampleCodec(folder.app, folder.settings.samples)
    prefix = sample_schema(app, f"streamlearn.{app.name}").prefix
    with create_topic(
        folder.topic_url("samples"), TopicSettings(partitions=2), folder.access, exist_ok=True
    ) as topic, topic.writer() as writer:  # fmt: skip
        for partition, batch in messages:
            header = replace(batch.header, feature_fingerprint=app.features.fingerprint)
            writer.send(partition, prefix + codec.encode(replace(batch, header=header))[PREFIX_BYTES:])
        writer.flush()


def run_of_before(folder: AppFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train as the release before did: manifests name no labels."""

    def of_before(folder: AppFolder) -> Lineage:
        app, tables = folder.app, of(folder).tables
        return Lineage(app.name, app.features.fingerprint, app.window_settings, tables)

    of = Lineage.of
    with monkeypatch.context() as changed:
        changed.setattr(Lineage, "of", of_before)
        run(folder)
    assert newest(folder).labels is None


@pytest.mark.parametrize("how", _CHANGED)
def test_a_trainer_refuses_other_labels_by_name(tmp_path: Path, how: str) -> None:
    folder = folder_of(tmp_path)
    write_messages(folder, messages_of(folder.app, 6))
    version = run(folder).version
    changed = replace(folder, app=_CHANGED[how])
    with pytest.raises(UsageError) as refused:
        run(changed)
    names = ", ".join(label.name for label in changed.app.labels)
    said = f"version {version} of 'learnable' has the labels click, bought; this application has {names}"
    assert refused.value.message == said
    assert "new name" in refused.value.help
    assert newest(folder).version == version


def test_a_version_names_its_labels_in_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    write_messages(folder, messages_of(folder.app, 2))
    run(folder)
    assert newest(folder).labels == ("click", "bought")
    assert newest(folder).fingerprint == folder.app.model_fingerprint


def test_windows_may_change_and_nothing_is_learned_again(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    messages = messages_of(folder.app, 12)
    write_messages(folder, messages)
    version = run(folder).version
    slower = replace(_APP, groups=(replace(_FAST, window_s=90), LabelGroup("slow", wait_s=150, window_s=150)))
    assert slower.window_settings != _APP.window_settings
    other = replace(folder, app=slower)
    again = [(at, replace(one, header=replace(one.header, window_settings=slower.window_settings)))
             for at, one in messages]  # fmt: skip
    write_messages(other, again)
    report = run(other)
    assert report.tally.rows == 0
    assert report.tally.counts["dropped"] > 0
    assert report.version == version


def test_a_version_of_before_is_trusted_once_and_the_next_one_names_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(tmp_path)
    messages = messages_of(folder.app, 12)
    write_messages(folder, messages[:6])
    run_of_before(folder, monkeypatch)
    before = newest(folder).version
    for part, lines in ((messages[6:9], 1), (messages[9:], 0)):
        write_messages(folder, part)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert run(folder).tally.rows > 0
        said = [one for one in caplog.messages if "does not list its labels" in one]
        assert said == [f"version {before} of 'learnable' does not list its labels: the trainer assumes "
                        "click, bought; the next version lists them"] * lines  # fmt: skip
    chain = Chain.find(store_of(folder), "learnable")
    assert chain.links[0].manifest.labels is None
    assert chain.manifest.labels == ("click", "bought")
    state_of(folder)  # the chain is read over both
    with pytest.raises(UsageError, match="has the labels click, bought; this application has bought, click"):
        run(replace(folder, app=_CHANGED["reordered"]))
    # Content of before under today's labels: a revert is one of this lineage.
    write_revert(store_of(folder), "learnable", to=before, run=chain.manifest.run)
    assert newest(folder).labels == ("click", "bought")
    run(folder)
    with pytest.raises(UsageError, match="has the labels click, bought"):
        run(replace(folder, app=_CHANGED["renamed"]))


def test_a_version_of_before_of_other_features_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path)
    write_messages(folder, messages_of(folder.app, 2))
    run_of_before(folder, monkeypatch)
    slots = (replace(_APP.features.slots[0], name="person"), *_APP.features.slots[1:])
    other = replace(_APP, features=replace(_APP.features, slots=slots))
    with pytest.raises(UsageError, match=f"features and labels of fingerprint {_APP.features.fingerprint}"):
        run(replace(folder, app=other))


def test_samples_of_before_are_learned_also_where_windows_have_changed_since(tmp_path: Path) -> None:
    messages = messages_of(_APP, 8)
    learned = []
    for name, write in (("old", write_of_before), ("new", write_messages)):
        folder = folder_of(tmp_path / name, order="strict")
        write(folder, messages)
        app = replace(_APP, groups=(replace(_FAST, window_s=90), _SLOW)) if name == "old" else _APP
        assert run(replace(folder, app=app)).tally.counts["bad"] == 0
        learned.append(state_of(folder))
    assert learned[0] == learned[1]


@pytest.mark.parametrize("write", [write_messages, write_of_before], ids=["today", "before"])
@pytest.mark.parametrize("how", _CHANGED)
def test_samples_of_other_labels_end_training_and_are_not_learned(tmp_path: Path, how: str, write: Any) -> None:
    folder = folder_of(tmp_path, _CHANGED[how], bad_messages_max=10)
    write(replace(folder, app=_APP), messages_of(_APP, 3))
    names = ", ".join(folder.app.label_names)
    with pytest.raises(UnknownSchema) as refused:
        run(folder)
    assert refused.value.message == f"the message has the labels click, bought; app 'learnable' expects {names}"
    assert newest(folder).metrics.get("samples", 0) == 0


def test_other_dims_are_learned_from_the_samples_there_are(tmp_path: Path) -> None:
    """A model of another name reads the topic of the first one; so does an evaluation."""
    folder = folder_of(tmp_path)
    messages = messages_of(_APP, 8)
    write_messages(folder, messages)
    rows = run(folder).tally.rows
    slots = tuple(replace(slot, dim=2, initial_range=0.01) for slot in _APP.features.slots)
    app = replace(_APP, name="narrow", features=replace(_APP.features, slots=slots))
    assert app.samples_fingerprint == _APP.samples_fingerprint
    assert app.model_fingerprint != _APP.model_fingerprint
    given = {"topics": {"samples": folder.topic_url("samples")}, **_SETTINGS}
    narrow = learnable_folder(tmp_path, given, app)
    assert run(narrow).tally.rows == rows
    assert newest(narrow).tables[0].dim == 2
    with ExitStack() as ends:
        topic = ends.enter_context(narrow.open_topic("samples"))
        split = split_of(narrow, topic, SplitRequest(hold_out=0.0), ends_of(topic, "end"), keep_aside=lambda *_: None)
        client = ends.enter_context(local_client(narrow))
        client.restore(Epoch(1), None)
        (made,) = Evaluation(narrow, Toy(), topic, client, split).passes(1, threading.Event())
    assert made.tally.rows == rows
