"""The tables of an application, as its settings and features declare them."""

from __future__ import annotations

import pytest

from streamlearn.apps import App
from streamlearn.errors import ConfigError
from streamlearn.features import FeatureSpec, Label, LabelGroup, Retrieval, Slot
from streamlearn.settings.tables import TableSettings
from streamlearn.table import declared_tables
from streamlearn.table.options import Adam

__all__: list[str] = []

_FEATURES = FeatureSpec((Slot("user_id", "user", table="users", dim=2), Slot("video_id", "item")), item_id="video_id")


def test_a_table_learns_at_a_rate_of_its_own_and_all_others_at_one() -> None:
    users, main = declared_tables(_FEATURES.tables, TableSettings(rate=0.1, rates={"users": 0.5}))
    assert users.optimizer is not None
    assert main.optimizer is not None
    assert (users.spec.name, users.optimizer.rate) == ("users", 0.5)
    assert (main.spec.name, main.optimizer.rate) == ("main", 0.1)


def test_the_rate_of_a_table_that_no_slot_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tables\.rates names table 'user'") as refused:
        declared_tables(_FEATURES.tables, TableSettings(rates={"user": 0.5}))
    assert "users, main" in refused.value.help


def test_the_table_of_the_towers_learns_as_all_tables_of_an_application_do() -> None:
    retrieval = Retrieval("click", user=("user_id",), item=("video_id",), dim=8)
    groups, labels = (LabelGroup("fast", 10, 60),), (Label("click", "click", "fast"),)
    app = App("shop", _FEATURES, groups, labels, retrieval=retrieval)
    *_, towers = declared_tables(app.tables, TableSettings(optimizer="adam", rates={"towers": 0.2}))
    assert isinstance(towers.optimizer, Adam)
    assert (towers.spec.name, towers.spec.dim, towers.optimizer.rate) == ("towers", 8, 0.2)
