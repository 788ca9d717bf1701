"""Answering: a node takes the versions of its application's features and labels, and refuses others by name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import App
from streamlearn.errors import VersionRefused
from streamlearn.features import Label
from streamlearn.models.description import Description, GraphNote, read_description, write_description
from streamlearn.serving.lanes.lane_kind import Made
from streamlearn.serving.servable_versions import Answering
from streamlearn.table import TableOptions, TableSet
from streamlearn.testing import small_app, small_folder
from streamlearn.versions import Committed, Cut, Head, Store, VersionWriter, open_store, record_of
from streamlearn.versions.format.graphs import put_graph

_APP = small_app("shop")
_CLICK, _BOUGHT = _APP.labels
_NOTE = GraphNote((), ())


class Lanes:
    """Lanes that read what describes a graph, and nothing of it."""

    def graph(self, name: str, folder: Path) -> Made:
        del name
        self.described = read_description(folder)
        scorer: Any = self
        ladder: Any = None
        return Made(scorer, ladder)

    def weights(self, _: Any, named: Mapping[str, Any]) -> None:
        self.named = {*named}


class Front:
    """Counts what it is given."""

    handles = 0

    def add(self, *_: Any) -> int:
        self.handles += 1
        return self.handles


def committed(store: Store, folder: Path, *, is_of_before: bool) -> tuple[Committed, TableSet]:
    """A version with a graph that was made for it; one of before names no labels in its manifest."""
    graph = folder / "graph"
    graph.mkdir()
    features = _APP.features
    write_description(
        graph, Description(features.fingerprint, _APP.label_names, features.pack.to_json(), (), None, _NOTE)
    )
    options = [TableOptions(spec, rows_max=100) for spec in features.tables]
    head = Head(
        model=_APP.name, run=1, version=121, kind="base", parent=None, windows=_APP.window_settings,
        fingerprint=features.fingerprint if is_of_before else _APP.model_fingerprint,
        labels=None if is_of_before else _APP.label_names, tables=tuple(map(record_of, options)),
    )  # fmt: skip
    writer = VersionWriter(store, head)
    writer.add_rows([])
    writer.add_dense({"kernel": np.ones(3, np.float32), "retrieval/scale": np.ones(1, np.float32)})
    return writer.finish(Cut(graph=put_graph(store, _APP.name, graph))), TableSet(options)


def stage(folder: Path, app: App, front: Front, *, is_of_before: bool = False) -> Lanes:
    """Give a version of the shop to a node whose folder has some application."""
    store, lanes = open_store(f"file://{folder}/store"), Lanes()
    version, tables = committed(store, folder, is_of_before=is_of_before)
    answering = Answering(small_folder(folder, app), store, lanes, front)  # type: ignore[arg-type]
    with closing(answering):
        answering.stage(version, tables)
    return lanes


@pytest.mark.parametrize("is_of_before", [False, True], ids=["today", "before"])
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param((_BOUGHT, _CLICK), id="reordered"),
        pytest.param((replace(_CLICK, name="share"), _BOUGHT), id="renamed"),
        pytest.param((_CLICK, _BOUGHT, Label("view", "view", "fast")), id="added"),
        pytest.param((_CLICK,), id="removed"),
    ],
)
def test_a_node_refuses_other_labels_by_name(tmp_path: Path, labels: tuple[Label, ...], is_of_before: bool) -> None:
    groups = tuple(group for group in _APP.groups if group.name in {label.group for label in labels})
    front = Front()
    with pytest.raises(VersionRefused) as refused:
        stage(tmp_path, replace(_APP, labels=labels, groups=groups), front, is_of_before=is_of_before)
    names = ", ".join(label.name for label in labels)
    said = f"version 121 of 'shop' has the labels click, bought; this application has {names}"
    assert refused.value.message == said
    assert refused.value.help
    assert front.handles == 0


@pytest.mark.parametrize("is_of_before", [False, True], ids=["today", "before"])
def test_a_node_takes_its_own_labels_under_other_windows(tmp_path: Path, is_of_before: bool) -> None:
    groups = (replace(_APP.groups[0], window_s=700), _APP.groups[1])
    front = Front()
    stage(tmp_path, replace(_APP, groups=groups), front, is_of_before=is_of_before)
    assert front.handles == 1


def test_a_node_scores_by_the_weights_of_the_ranking_model_alone(tmp_path: Path) -> None:
    assert stage(tmp_path, _APP, Front()).named == {"kernel"}
