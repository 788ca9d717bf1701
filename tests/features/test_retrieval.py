"""Retrieval as it is declared: what becomes of it, what it leaves alone, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamlearn.apps import App
from streamlearn.errors import SpecError
from streamlearn.features import (
    Count,
    Dense,
    FeatureSpec,
    Label,
    LabelGroup,
    Last,
    Library,
    Number,
    Retrieval,
    Slot,
    TableSpec,
)
from streamlearn.features.retrieval import TOWERS
from streamlearn.testing import small_app

USER = ("user_id", "history", "age")
TWO = Retrieval(label="click", user=USER, item=("video_id", "topics", "vector"), dim=32)


def app(**changed: Any) -> App:
    return replace(small_app(), retrieval=replace(TWO, **changed))


def test_its_columns_are_those_of_the_application_with_rows_in_a_table_of_its_own() -> None:
    declared = app()
    towers = declared.towers
    assert towers is not None
    assert [slot.name for slot in towers.slots] == ["user_id", "history", "video_id", "topics"]
    for slot in towers.slots:
        of_model = declared.features.slot(slot.name)
        assert (slot.table, slot.dim) == (TOWERS, 32)
        kept = replace(slot, table=of_model.table, dim=of_model.dim, initial_range=of_model.initial_range)
        assert (kept, slot.salt_name) == (of_model, of_model.salt_name)
    assert [column.name for column in towers.dense] == ["age", "vector"]
    assert (towers.item_id, towers.derived, towers.segments) == ("video_id", (), ())
    assert declared.tables == (*declared.features.tables, TableSpec(TOWERS, 32, 0.05))


def test_a_computed_column_is_packed_like_any_other_and_is_computed_once() -> None:
    watched = Slot("watched", "user", multi=True, keys_of="video", computed=Last("video", of="view", length=5))
    features = FeatureSpec((Slot("user_id", "user"), watched, Slot("video", "item")), item_id="video")
    retrieval = Retrieval("view", user=("watched",), item=("video",))
    declared = App(
        "shop", features, (LabelGroup("fast", 10, 60),), (Label("view", "view", "fast"),), retrieval=retrieval
    )
    assert declared.towers is not None
    assert declared.towers.entities == ()
    assert declared.features.entities != ()


def test_nothing_else_of_an_application_changes_with_it() -> None:
    plain = small_app()
    assert (plain.towers, plain.retrieval_fingerprint, plain.tables) == (None, "", plain.features.tables)
    for fingerprint in ("model_fingerprint", "window_settings"):
        assert getattr(app(), fingerprint) == getattr(plain, fingerprint)
    assert app().samples_fingerprint != plain.samples_fingerprint, "samples have the ids of items, too"


def test_its_fingerprint_changes_with_what_the_towers_learn_and_not_with_the_library() -> None:
    first = app().retrieval_fingerprint
    assert app(library=Library(expire_s=60)).retrieval_fingerprint == first
    others = {"label": "bought", "user": ("user_id",), "item": ("video_id",), "dim": 16, "model": "model:Mine"}
    changed = {app(**{name: value}).retrieval_fingerprint for name, value in others.items()}
    assert len(changed | {first}) == 1 + len(others)


def test_a_renamed_label_is_the_same_label() -> None:
    renamed = replace(small_app().labels[0], name="tap", was="click")
    changed = replace(small_app(), labels=(renamed, small_app().labels[1]), retrieval=replace(TWO, label="tap"))
    assert changed.retrieval_fingerprint == app().retrieval_fingerprint


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"label": "view"}, "'view', which is not a label that is positive or negative"),
        ({"user": ("country", "video_id")}, "user names 'video_id', which is not a slot or dense column of the user"),
        ({"item": ("video_id", "page")}, "item names 'page'"),
        ({"user": ()}, "user names no column"),
        ({"user": "user_id"}, "user is 'user_id'"),
        ({"user": ("user_id", "user_id")}, "user names a column twice"),
        ({"item": ("topics",)}, "item lacks 'video_id'"),
        ({"dim": 30}, "dim is 30"),
        ({"dim": 516}, "dim is 516"),
        ({"dim": 0}, "dim is 0"),
        ({"dim": True}, "dim is True"),
        ({"model": "Two Tower"}, "model 'Two Tower'"),
        ({"library": Library(expire_s=0)}, "expire_s is 0"),
        ({"library": 30}, "library is 30"),
    ],
)
def test_what_does_not_fit_the_application_is_refused_with_help(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        app(**changed)
    assert refused.value.help


def test_a_label_that_is_a_number_is_refused() -> None:
    label = Label("spent", "purchase", "slow", number=Number(missing=0.0))
    with pytest.raises(SpecError, match="'spent'") as refused:
        replace(small_app(), labels=(small_app().labels[0], label), retrieval=replace(TWO, label="spent"))
    assert "click" in refused.value.help


@pytest.mark.parametrize("name", ["k", "exclude", "allow", "candidates", "rank_by"])
def test_features_of_users_and_inputs_of_requests_for_items_have_names_of_their_own(name: str) -> None:
    features = small_app().features
    ages = (Dense(name, "user"), Dense("years", "user", was=name))
    for age in ages:
        dense = tuple(age if column.name == "age" else column for column in features.dense)
        plain = replace(small_app(), features=replace(features, dense=dense))
        with pytest.raises(SpecError, match=f"is named '{name}', as is an input of requests for items") as refused:
            replace(plain, retrieval=replace(TWO, user=("user_id", "history")))
        assert "rank_by" in refused.value.help


def test_a_label_that_is_named_as_the_output_of_ids_is_refused() -> None:
    labels = (small_app().labels[0], replace(small_app().labels[1], name="id"))
    plain = replace(small_app(), labels=labels)
    with pytest.raises(SpecError, match="a label is named 'id', as is the output with the ids of items") as refused:
        replace(plain, retrieval=TWO)
    assert refused.value.help


def test_computed_columns_of_items_are_refused() -> None:
    views = Dense("views", "item", default=0.0, computed=Count("view", "1h"))
    features = FeatureSpec((Slot("user_id", "user"), Slot("video", "item")), item_id="video", dense=(views,))
    retrieval = Retrieval("view", user=("user_id",), item=("video", "views"))
    groups, labels = (LabelGroup("fast", 10, 60),), (Label("view", "view", "fast"),)
    with pytest.raises(SpecError, match="'views', which is computed"):
        App("shop", features, groups, labels, retrieval=retrieval)


@pytest.mark.parametrize("table", ["towers"])
def test_its_tables_are_its_own(table: str) -> None:
    slots = tuple(replace(slot, table=table) if slot.table == "text" else slot for slot in small_app().features.slots)
    features = replace(small_app().features, slots=slots)
    assert replace(small_app(), features=features).tables
    with pytest.raises(SpecError, match=f"table '{table}', which is that of retrieval"):
        replace(small_app(), features=features, retrieval=TWO)


def test_a_history_needs_the_slot_whose_keys_it_has() -> None:
    authors = Slot("authors", "user", multi=True, keys_of="author")
    features = FeatureSpec(
        (Slot("user_id", "user"), authors, Slot("video", "item"), Slot("author", "item")), item_id="video"
    )
    plain = App("shop", features, (LabelGroup("fast", 10, 60),), (Label("view", "view", "fast"),))
    with pytest.raises(SpecError, match="slot 'authors' shares the keys of 'author', which is not named"):
        replace(plain, retrieval=Retrieval("view", user=("authors",), item=("video",)))
    assert replace(plain, retrieval=Retrieval("view", user=("authors",), item=("video", "author"))).towers
