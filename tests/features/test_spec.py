"""The feature spec: what it refuses, and what its fingerprint notices."""

from __future__ import annotations

from dataclasses import MISSING, field, fields, make_dataclass, replace
from typing import Any

import pytest

from streamlearn.errors import SpecError
from streamlearn.features import (
    Calibration,
    CountIn,
    Cross,
    Dense,
    FeatureSpec,
    Label,
    LabelGroup,
    Number,
    Product,
    Segment,
    Slot,
    TableSpec,
)
from streamlearn.features.names import declared
from streamlearn.testing import small_app

VIDEO = Slot("video_id", "item")
USER = Slot("user_id", "user")
CROSS = Cross("user_id", "video_id")
KINDS: tuple[Any, ...] = (Slot, Dense, LabelGroup, Label, Number, Cross, Product, CountIn)


def spec_of(*slots: Slot, **others: Any) -> FeatureSpec:
    return FeatureSpec(slots=(VIDEO, *slots), item_id=others.pop("item_id", "video_id"), **others)


def odd(kind: Any, *args: Any, **fields: Any) -> Any:
    """What a type checker would refuse, as a caller without one writes it."""
    return kind(*args, **fields)


def history(name: str = "history", **fields: Any) -> Slot:
    given: dict[str, Any] = {"multi": True, "pooling": "sequence", "length": 8} | fields
    return Slot(name, given.pop("side", "user"), **given)


# (what the spec is made of, what the message names, what the help says)
CONTRADICTIONS: list[Any] = [
    pytest.param({"slots": (USER, USER)}, "'user_id'", "its own name", id="two slots of one name"),
    pytest.param(
        {"slots": (USER,), "dense": (Dense("user_id", "user"),)},
        "'user_id'",
        "its own name",
        id="a slot and a dense column of one name",
    ),
    pytest.param(
        {"dense": (Dense("age", "user"), Dense("age", "item"))},
        "'age'",
        "its own name",
        id="two dense columns of one name",
    ),
    pytest.param(
        {"segments": (Segment("page"), Segment("page", "item"))},
        "'page'",
        "its own name",
        id="two segments of one name",
    ),
    pytest.param(
        {"slots": (Slot("segment_fresh", "item"),), "segments": (Segment("fresh", "item"),)},
        "'segment_fresh'",
        "its own name",
        id="a slot named as an item's segment is in events",
    ),
    pytest.param({"slots": (Slot("User", "user"),)}, "'User'", "lower-case", id="a capital letter"),
    pytest.param({"slots": (Slot("", "user"),)}, "''", "beginning with a letter", id="no name"),
    pytest.param({"slots": (Slot("a-b", "user"),)}, "'a-b'", "lower-case", id="a dash"),
    pytest.param({"slots": (Slot("1st", "user"),)}, "'1st'", "beginning with a letter", id="a digit first"),
    pytest.param({"slots": (Slot("a\n", "user"),)}, r"'a\n'", "lower-case", id="a line end"),
    pytest.param({"slots": (Slot("n" * 65, "user"),)}, "nnn", "at most 64", id="a long name"),
    pytest.param({"slots": (odd(Slot, 5, "user"),)}, "5", "lower-case", id="a name that is no text"),
    pytest.param({"dense": (Dense("Age", "user"),)}, "dense column name 'Age'", "lower-case", id="dense"),
    pytest.param({"segments": (Segment("Page"),)}, "segment name 'Page'", "lower-case", id="segment"),
    pytest.param({"slots": (Slot("a", "user", table="T"),)}, "table name 'T'", "lower-case", id="table"),
    pytest.param({"slots": (Slot("served_x", "user"),)}, "'served_x'", "are reserved", id="a reserved beginning"),
    pytest.param({"slots": (Slot("a_offsets", "user"),)}, "'a_offsets'", "are reserved", id="reserved offsets"),
    pytest.param({"dense": (Dense("a_weights", "user"),)}, "'a_weights'", "are reserved", id="reserved weights"),
    pytest.param({"slots": (odd(Slot, "a", "both"),)}, "side is 'both'", "user, item", id="a side"),
    pytest.param({"dense": (odd(Dense, "a", "both"),)}, "side is 'both'", "user, item", id="a dense side"),
    pytest.param({"segments": (odd(Segment, "a", "x"),)}, "side is 'x'", "user, item", id="a segment side"),
    pytest.param({"slots": (odd(Slot, "a", "user", pooling="max"),)}, "'max'", "sqrtn", id="a pooling"),
    pytest.param({"slots": (odd(Slot, "a", "user", value="float"),)}, "'float'", "int, str", id="a value"),
    pytest.param({"slots": (Slot("a", "user", dim=0),)}, "'a': dim is 0", "1 to 1024", id="dim 0"),
    pytest.param({"slots": (Slot("a", "user", dim=1025),)}, "dim is 1025", "1 to 1024", id="dim 1025"),
    pytest.param({"slots": (Slot("a", "user", dim=True),)}, "dim is True", "whole number", id="dim True"),
    pytest.param({"slots": (odd(Slot, "a", "user", dim=2.0),)}, "dim is 2.0", "whole number", id="dim 2.0"),
    pytest.param(
        {"slots": (Slot("a", "user", initial_range=-0.1),)}, "initial_range is -0.1", "at least 0", id="range"
    ),
    pytest.param({"slots": (Slot("a", "user", initial_range=float("nan")),)}, "is nan", "finite", id="range nan"),
    pytest.param({"slots": (odd(Slot, "a", "user", initial_range="1"),)}, "is '1'", "a number", id="range text"),
    pytest.param({"dense": (Dense("a", "user", width=0),)}, "width is 0", "1 to 4096", id="width 0"),
    pytest.param({"dense": (Dense("a", "user", width=4097),)}, "width is 4097", "1 to 4096", id="width 4097"),
    pytest.param({"slots": (history(length=0),)}, "length is 0", "1 to 4096", id="length 0"),
    pytest.param({"slots": (history(length=4097),)}, "length is 4097", "1 to 4096", id="length 4097"),
    pytest.param(
        {"slots": (Slot("a", "user", multi=True, length=8),)},
        "'a': length is 8 and pooling is 'sum'",
        "only with pooling='sequence'",
        id="a length without a sequence",
    ),
    pytest.param({"slots": (history(multi=False),)}, "'history'", "multi=True", id="a single-valued sequence"),
    pytest.param({"slots": (Slot("a", "item", pooling="weighted"),)}, "'weighted'", "multi=True", id="single weighted"),
    pytest.param({"slots": (history(side="item"),)}, "'history'", "only on the user side", id="an item-side sequence"),
    pytest.param(
        {"slots": (history(), history("watched", length=9))},
        "'history' 8, 'watched' 9",
        "the same length",
        id="sequences of different lengths",
    ),
    pytest.param({"slots": (Slot("a", "user", dim=8),)}, "table 'main'", "agree on both", id="a table of two dims"),
    pytest.param(
        {"slots": (Slot("a", "user", initial_range=0.1),)},
        "slot 'a' has dim 16, initial_range 0.1",
        "another table",
        id="a table of two ranges",
    ),
    pytest.param({"slots": (history(keys_of="clip"),)}, "'clip'", "video_id", id="keys of no slot"),
    pytest.param(
        {"slots": (history(keys_of="video_id", table="other"),)},
        "'history' cannot share the keys of 'video_id'",
        "same table and value",
        id="keys of another table",
    ),
    pytest.param(
        {"slots": (history(keys_of="video_id", value="str"),)},
        "'history' cannot share",
        "same table and value",
        id="keys of another type",
    ),
    pytest.param(
        {"slots": (history(keys_of="video_id"), history("watched", keys_of="history"))},
        "'watched' cannot share the keys of 'history'",
        "does not set keys_of itself",
        id="keys of a slot that shares itself",
    ),
    pytest.param({"slots": (Slot("a", "user", keys_of="a"),)}, "'a'", "does not set keys_of itself", id="own keys"),
    pytest.param({"item_id": "clip"}, "'clip'", "video_id", id="an item_id that is no slot"),
    pytest.param({"slots": (USER,), "item_id": "user_id"}, "'user_id'", "of the item side", id="a user's item_id"),
    pytest.param(
        {"slots": (Slot("tags", "item", multi=True),), "item_id": "tags"},
        "'tags'",
        "single-valued",
        id="a multi-valued item_id",
    ),
    pytest.param(
        {"slots": (Slot("a", "user", default="x"),)}, "default 'x' is not of type int", "of type int", id="int default"
    ),
    pytest.param({"slots": (Slot("a", "user", default=True),)}, "default True", "of type int", id="bool default"),
    pytest.param(
        {"slots": (Slot("a", "user", value="str", default=0),)}, "is not of type str", "of type str", id="str default"
    ),
    pytest.param({"slots": (Slot("a", "user", default=1 << 63),)}, str(1 << 63), "signed 64-bit", id="a large default"),
    pytest.param(
        {"slots": (Slot("a", "user", multi=True, default=1),)},
        "multi-valued slot has a default of 1",
        "leave the default out",
        id="a multi-valued default",
    ),
    pytest.param({"derived": (Cross("video_id", "nobody"),)}, "'nobody'", "the slots are", id="a cross of no slot"),
    pytest.param(
        {"slots": (USER,), "derived": (Cross("user_id", "user_id"),)},
        "both its slots are",
        "two slots",
        id="a cross with itself",
    ),
    pytest.param(
        {"slots": (history(),), "derived": (Cross("history", "video_id"),)},
        "'history_x_video_id': slot 'history' has several",
        "one value each",
        id="a cross of several values",
    ),
    pytest.param(
        {"slots": (USER,), "derived": (Calibration("click", "user_id", method="beta"),)},  # type: ignore[arg-type]
        "method is 'beta'",
        "one of platt, isotonic",
        id="a calibration of no method",
    ),
    pytest.param({"derived": (Product("a", "b"),)}, "no dense column is named 'a'", "none", id="a product of none"),
    pytest.param(
        {"dense": (Dense("a", "user"), Dense("b", "item", width=2)), "derived": (Product("a", "b"),)},
        "'a' has width 1, but 'b' 2",
        "of one width",
        id="a product of two widths",
    ),
    pytest.param(
        {"slots": (USER, history()), "derived": (CountIn("user_id", "history"),)},
        "'user_id' cannot be counted within 'history'",
        "a slot of the item side",
        id="a count of a user's slot",
    ),
    pytest.param(
        {"slots": (history(),), "derived": (CountIn("video_id", "history"),)},
        "'history' does not share the keys of 'video_id'",
        "keys_of='video_id'",
        id="a count of other keys",
    ),
    pytest.param(
        {"slots": (history(),), "derived": (Calibration("click", "history"),)},
        "calibration 'click_by_history': slot 'history' has several",
        "one value each",
        id="a calibration by several values",
    ),
    pytest.param(
        {"slots": (replace(USER, table="calibration"),), "derived": (Calibration("click", "user_id"),)},
        "'calibration' is declared twice",
        "use another table",
        id="a calibration in a table of others",
    ),
    pytest.param({"slots": (USER,), "derived": CROSS}, "derived is Cross(", "write (Cross(...),)", id="no tuple"),
    pytest.param({"slots": (USER,), "derived": (CROSS, CROSS)}, "'user_id_x_video_id'", "own name", id="twice"),
    pytest.param({"slots": (USER,), "derived": (replace(CROSS, dim=0),)}, "dim is 0", "from 1", id="a cross of dim 0"),
    pytest.param(
        {"slots": (USER,), "derived": (replace(CROSS, dim=9),)}, "'main' is declared twice", "agree", id="dims"
    ),
    pytest.param({"slots": (USER,), "derived": (replace(CROSS, name="A"),)}, "'A'", "lower-case", id="a cross's name"),
    pytest.param({"dense": (odd(Dense, "a", "user", default="x"),)}, "default is 'x'", "a number", id="dense text"),
    pytest.param({"dense": (Dense("a", "user", default=True),)}, "default is True", "a number", id="dense bool"),
    pytest.param({"dense": (Dense("a", "user", default=float("inf")),)}, "default is inf", "finite", id="dense inf"),
    pytest.param(
        {"dense": (Dense("a", "user", default=1e39),)},
        "1e+39",
        "finite as float32",
        id="dense beyond float32",
    ),
]


@pytest.mark.parametrize(("given", "named", "advice"), CONTRADICTIONS)
def test_a_contradiction_is_refused_by_name_and_with_advice(given: dict[str, Any], named: str, advice: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(*given.get("slots", ()), **{name: value for name, value in given.items() if name != "slots"})
    assert named in caught.value.message
    assert advice in caught.value.help


def test_a_spec_without_slots_is_refused() -> None:
    with pytest.raises(SpecError, match="0 slots"):
        FeatureSpec(slots=(), item_id="video_id")


def test_a_spec_of_too_many_slots_is_refused() -> None:
    many = tuple(Slot(f"s{number}", "user") for number in range(1024))
    with pytest.raises(SpecError, match="1025 slots"):
        spec_of(*many)


def test_bounds_themselves_are_allowed() -> None:
    spec = spec_of(
        Slot("n" * 64, "user", table="wide", dim=1024, initial_range=0),
        history(length=4096, table="narrow", dim=1),
        dense=(Dense("a", "user", width=4096, default=-1),),
    )
    assert [slot.dim for slot in spec.slots] == [16, 1024, 1]


def test_a_slot_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(SpecError, match="no slot is named 'clip'") as caught:
        spec_of(USER).slot("clip")
    assert caught.value.help == "the slots are video_id, user_id"


def test_tables_are_listed_once_in_the_order_they_are_named() -> None:
    assert small_app().features.tables == (TableSpec("main", 16, 0.05), TableSpec("text", 4, 0.05))


def test_columns_of_a_side_keep_their_declared_order() -> None:
    spec = small_app().features
    assert [slot.name for slot in spec.slots_of("item")] == ["video_id", "tags", "topics"]
    assert [column.name for column in spec.dense_of("user")] == ["age"]
    assert [segment.name for segment in spec.segments_of("item")] == ["fresh"]


def test_lists_are_as_good_as_tuples() -> None:
    assert odd(FeatureSpec, slots=[VIDEO], item_id="video_id") == spec_of()


def test_keys_are_seeded_by_the_name_of_the_slot_they_belong_to() -> None:
    assert history(keys_of="video_id").salt_name == "video_id"
    assert history().salt_name == "history"


def test_the_fingerprint_of_a_fixed_spec_never_changes() -> None:
    """A change here says that no model trained before can be continued: mean it, and say so in CHANGELOG."""
    assert spec_of(USER).fingerprint == "528715c468601254"
    assert small_app().features.fingerprint == "4b06c24c016fd4f9"


SPEC = FeatureSpec(
    slots=(
        VIDEO,
        Slot("tags", "item", table="tags", multi=True),
        history(table="past"),
        Slot("alike", "item", table="tags"),
    ),
    dense=(Dense("age", "user"),),
    item_id="video_id",
)


def changed(slot: int, **fields: Any) -> FeatureSpec:
    slots = list(SPEC.slots)
    slots[slot] = replace(slots[slot], **fields)
    return replace(SPEC, slots=tuple(slots))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(changed(1, name="labels"), id="name"),
        pytest.param(changed(1, side="user"), id="side"),
        pytest.param(changed(0, table="videos"), id="table"),
        pytest.param(changed(0, dim=8), id="dim"),
        pytest.param(changed(3, multi=True), id="multi"),
        pytest.param(changed(1, pooling="mean"), id="pooling"),
        pytest.param(changed(2, length=9), id="length"),
        pytest.param(changed(1, value="str"), id="value"),
        pytest.param(changed(0, initial_range=0.1), id="initial_range"),
        pytest.param(changed(3, keys_of="tags"), id="keys_of"),
        pytest.param(replace(SPEC, slots=SPEC.slots[:1] + SPEC.slots[:0:-1]), id="the order of slots"),
        pytest.param(replace(SPEC, slots=SPEC.slots[:-1]), id="a slot less"),
        pytest.param(replace(SPEC, dense=()), id="a dense column less"),
        pytest.param(replace(SPEC, dense=(Dense("years", "user"),)), id="a dense name"),
        pytest.param(replace(SPEC, dense=(Dense("age", "item"),)), id="a dense side"),
        pytest.param(replace(SPEC, dense=(Dense("age", "user", width=2),)), id="a dense width"),
        pytest.param(replace(SPEC, item_id="alike"), id="item_id"),
    ],
)
def test_the_fingerprint_changes_with_all_a_model_depends_on(other: FeatureSpec) -> None:
    assert other.fingerprint != SPEC.fingerprint


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(changed(0, default=7), id="a slot's default"),
        pytest.param(replace(SPEC, dense=(Dense("age", "user", default=1.0),)), id="a dense default"),
        pytest.param(replace(SPEC, segments=(Segment("page"),)), id="a segment"),
    ],
)
def test_the_fingerprint_ignores_what_leaves_every_model_valid(same: FeatureSpec) -> None:
    assert same.fingerprint == SPEC.fingerprint


def test_a_cross_changes_the_fingerprint_of_models_and_leaves_samples_as_they_are() -> None:
    app = small_app()
    crossed = replace(app, features=replace(app.features, derived=(Cross("user_id", "video_id"),)))
    assert crossed.samples_fingerprint == app.samples_fingerprint
    assert crossed.features.fingerprint != app.features.fingerprint
    wider = replace(crossed.features, derived=(Cross("user_id", "video_id", table="own", dim=8),))
    assert wider.fingerprint != crossed.features.fingerprint
    assert [table.name for table in wider.tables][-1] == "own"


def test_equal_specs_have_equal_fingerprints_however_their_numbers_are_written() -> None:
    whole, real = (
        spec_of(Slot("a", "user", table="t", initial_range=0)),
        spec_of(Slot("a", "user", table="t", initial_range=0.0)),
    )
    assert whole == real
    assert whole.fingerprint == real.fingerprint


def test_an_option_that_a_later_release_adds_changes_no_fingerprint_until_it_is_used() -> None:
    later = make_dataclass("Later", [("added", float, field(default=0.0))], bases=(Slot,), frozen=True)
    assert declared(later("user_id", "user")) == declared(Slot("user_id", "user"))
    assert declared(later("user_id", "user", added=2)) == {**declared(Slot("user_id", "user")), "added": 2.0}


def test_the_defaults_of_declarations_never_change() -> None:
    """What equals its default enters no fingerprint, so another default would be another model unseen."""
    defaults = {kind: {one.name: one.default for one in fields(kind) if one.default is not MISSING} for kind in KINDS}
    assert defaults == {
        Slot: {
            "table": "main",
            "dim": 16,
            "multi": False,
            "pooling": "sum",
            "length": 0,
            "value": "int",
            "initial_range": 0.05,
            "default": None,
            "keys_of": None,
            "was": None,
            "computed": None,
        },
        Dense: {"width": 1, "default": None, "was": None, "computed": None},
        LabelGroup: {},
        Label: {"sample_rate": 1.0, "follows": None, "loss_weight": 1.0, "number": None, "was": None},
        Number: {
            "loss": "squared",
            "combine": "last",
            "low": None,
            "high": None,
            "center": 0.0,
            "scale": 1.0,
            "delta": 1.0,
            "quantile": 0.5,
        },
        Cross: {"table": "main", "dim": 16, "initial_range": 0.05, "name": ""},
        Product: {"name": ""},
        CountIn: {"name": ""},
    }


@pytest.mark.parametrize(("field_name", "found"), [("slots", VIDEO), ("dense", Dense("age", "user")), ("slots", "ab")])
def test_one_declaration_where_several_belong_is_told_its_comma(field_name: str, found: Any) -> None:
    given: dict[str, Any] = {"slots": (VIDEO,), "item_id": "video_id", field_name: found}
    with pytest.raises(SpecError, match=f"{field_name} is ") as caught:
        FeatureSpec(**given)
    assert "with its comma even for one element" in caught.value.help
