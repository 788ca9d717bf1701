"""`streamlearn forget`: takes a person's rows out of the model, and says what else holds the person, and until when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import Model, ModelArgument, ReasonOption, author, open_model
from streamlearn.cli.options import JsonOption, Place, at_place
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import counted, whole_units
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import PartlyDone, TopicError, TopicMissing, UsageError
from streamlearn.printable import printable
from streamlearn.times import time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamlearn.apps import AppFolder
    from streamlearn.features import Slot

__all__ = ["forget"]

_POLL_S = 0.5
# Longer than a step of a process that folds interactions.
_STATES_S = 5.0
# Topics whose records hold values of slots, or the actions of a person.
_TOPICS = ("impressions", "actions", "samples", "interactions", "dead_letters")
Row = dict[str, Any]


@at_place
def forget(
    place: Place,
    name: ModelArgument = None,
    user: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Value of the slot `user_id` or `user`; may be repeated.")
    ] = None,
    slot: Annotated[
        list[str] | None, typer.Option(metavar="NAME=ID", help="Value of another slot; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would happen.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait until no node uses the rows.")
    ] = 150.0,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Delete the rows of a person from the model, and list what else holds the person, and until when."""
    from streamlearn.apps import load_app
    from streamlearn.versions.pointer.deletion import Deletion, Deletions

    app = place.app or Path(name or ".")
    if not (app / "app.py").is_file():
        message = f"{app} is not an application: it has no app.py"
        raise UsageError(message, help="name the application's folder: its declaration says how ids become keys")
    folder = load_app(app, place.set_ or ())
    model = open_model(folder.app.name, replace(place, app=app))
    keys = _keys(folder, user or (), slot or ())
    now_ms, seq, waits_for = SYSTEM_CLOCK.wall_ms(), None, ""
    until_ms = now_ms + round(max(group.window_s for group in folder.app.groups) * 1e3)
    remains = _remains(folder, model, now_ms)
    if not dry_run:
        by_table: dict[str, tuple[str, ...]] = {}
        for row in keys:
            by_table[row["table"]] = (*by_table.get(row["table"], ()), row["key"])
        deletion = Deletion(keys=by_table, until_ms=until_ms, by=author(), reason=reason)
        seq = Deletions(model.store, model.name).ask(deletion, model.known()).seq
        _remove_states(folder, keys)
        waits_for = _wait(model, seq, wait)
    if json:
        facts = {"seq": seq, "keys": keys, "until_ms": until_ms, "waits_for": waits_for, "remains": remains}
        print_json(facts)
    else:
        print_table(keys, whole=True)
        typer.echo(_said(model, keys, seq, waits_for))
        print_table(remains, "what else holds the person", whole=True)
        typer.echo(
            "by hand: exported versions, copies of topics and of the store, and applications that replace this one or "
            "that it replaced"
        )
    if waits_for:
        message = f"deletion {seq} is asked for, but not done: {waits_for}"
        raise PartlyDone(
            message, help="the request stays: training carries it out; `streamlearn versions MODEL` shows it"
        )


def _said(model: Model, keys: Sequence[Row], seq: int | None, waits_for: str) -> str:
    rows = f"the rows of {counted(len(keys), 'key')}"
    if seq is None:
        return f"nothing was changed; without --dry-run, the next version of {model.name} is without {rows}"
    return f"deletion {seq} takes {rows} out of {model.name}" + ("" if waits_for else ": no node uses them any more")


def _keys(folder: AppFolder, users: Sequence[str], slots: Sequence[str]) -> list[Row]:
    """Return slot, table and key of each given value. The value itself is not repeated: it may end in a log."""
    from streamlearn.features.keys import keys_of
    from streamlearn.features.retrieval import TOWERS
    from streamlearn.native import native

    features = folder.app.features
    given = [(_user_slot(folder), text) for text in users]
    for text in slots:
        name, equals, value = text.partition("=")
        if not equals:
            message = "--slot needs the form NAME=ID"
            raise UsageError(message, help=f"the slots are {', '.join(slot.name for slot in features.slots)}")
        given.append((features.slot(name), value))
    if not given:
        message = "no person was given"
        raise UsageError(message, help="give --user ID, or --slot NAME=ID for a slot of another name")
    found = []
    for slot, text in given:
        keys = keys_of(slot, [_value(slot, text)])
        found.append({"slot": slot.name, "table": slot.table, "key": f"{keys[0]:016x}"})
        if folder.app.towers is not None and slot.salt_name in {one.salt_name for one in folder.app.towers.slots}:
            found.append(found[-1] | {"table": TOWERS})
        for one in features.calibrations:
            if one.by == slot.name and one.method == "platt":
                (key,) = native.cross_keys(keys, keys, native.slot_salt(one.name))
                found.append({"slot": one.name, "table": one.table, "key": f"{key:016x}"})
    return found


def _remove_states(folder: AppFolder, keys: Sequence[Row]) -> None:
    """Remove the states of computed features of users or items with these keys, and lists of these users."""
    from streamlearn.online import open_state_store
    from streamlearn.online.candidate_lists import list_groups

    slots, user, computed = {row["slot"] for row in keys}, folder.app.features.user_slot, folder.app.features.entities
    entities = [entity for entity in computed if entity.slot in slots]
    # Users have lists also where only columns of items are computed.
    has_lists = folder.settings.retrieval.nearline != "off" and bool(computed) and user in slots
    if not entities and not has_lists:
        return
    with open_state_store(folder) as store:
        for again in range(2):
            if again:  # a process that folds may have read the states before, and have written them since
                SYSTEM_CLOCK.sleep(_STATES_S)
            groups = [(entity.slot, store.current(folder.app.samples_name, entity)) for entity in entities]
            if has_lists:
                groups += [(user, store.current_of(group)) for group in list_groups(folder)]
            for slot, group in groups:
                for key in (int(row["key"], 16) for row in keys if row["slot"] == slot):
                    if group is not None:
                        store.remove(group, key % group.partitions, [key])


def _user_slot(folder: AppFolder) -> Slot:
    from streamlearn.features.spec import USER_SLOTS

    spec = folder.app.features
    slots = [slot for slot in spec.slots_of("user") if not slot.multi]
    named = [slot for slot in slots if slot.name in ((spec.user_id,) if spec.user_id else USER_SLOTS)]
    if len(named) != 1:
        message = f"which slot names the user is not certain: {len(named)} slots are named user_id or user"
        raise UsageError(message, help=f"give --slot NAME=ID; slots are {', '.join(slot.name for slot in slots)}")
    return named[0]


def _value(slot: Slot, text: str) -> Any:
    try:
        return int(text) if slot.value == "int" else text
    except ValueError:
        message = f"the value of slot {slot.name!r} is not a whole number"
        raise UsageError(message, help='the slot is declared with value="int"') from None


def _wait(model: Model, seq: int, wait_s: float) -> str:
    """Wait until no node uses the rows; returns what is missing, empty if nothing is."""
    end_s = SYSTEM_CLOCK.monotonic_s() + wait_s
    while (missing := _missing(model, seq)) and SYSTEM_CLOCK.monotonic_s() < end_s:
        SYSTEM_CLOCK.sleep(_POLL_S)
    return missing


def _missing(model: Model, seq: int) -> str:
    from streamlearn.versions.pointer.deletion import obeyed_by

    known, pointer = model.known(), model.pointer
    clean = {entry.version for entry in known if obeyed_by(entry) >= seq}
    if not clean:
        return "no version is without the rows yet; the trainer cuts one within two publish intervals, if it runs"
    if pointer.active_version not in clean:
        with_rows = f"version {pointer.active_version}, which has the rows,"
        held = f"{with_rows} is held: `streamlearn release MODEL` ends that"
        return held if pointer.held else f"{with_rows} is served until version {max(clean)} is promoted"
    nodes, unknown = model.nodes()
    if unknown and not model.is_alone:
        return f"nodes are unknown: {unknown}"
    late = [node.name for node in [*nodes, *model.missing(nodes)] if node.active and node.active not in clean]
    if pointer.canary is not None and pointer.canary.version.version not in clean:
        late.append(f"the {pointer.canary.kind}")
    return f"still at a version with the rows: {printable(', '.join(late))}" if late else ""


def _remains(folder: AppFolder, model: Model, now_ms: int) -> list[Row]:
    """Return what a deletion does not reach at once, where it is, and when it goes."""
    rules, settings = model.settings.retention, folder.settings
    oldest = time_text(now_ms + round(rules.keep_s * 1e3))
    versions = f"after {oldest} UTC, once {rules.keep_versions_min} newer versions and a newer base exist"
    rows = [{"what": "older versions", "where": f"{model.store.url}/{model.name}", "goes": versions}]
    unreachable = ""
    for topic in (name for name in _TOPICS if name in folder.topics):
        row, unreachable = _topic_row(folder, topic, now_ms, unreachable)
        rows.append(row)
    kept = folder.folder / ".streamlearn" / "kept"
    count = sum(1 for _ in kept.glob("*")) if kept.is_dir() else 0
    rows.append({"what": "quarantine", "where": str(kept), "goes": f"by hand ({counted(count, 'file')})"})
    scores = settings.validation.folder or str(folder.folder / ".streamlearn" / "validation")
    rows.append({"what": "scores", "where": scores, "goes": "need not: they hold no ids"})
    return rows


def _topic_row(folder: AppFolder, name: str, now_ms: int, unreachable: str) -> tuple[Row, str]:
    """Return the row of a topic; once one is unreachable, the others are not waited for."""
    row = {"what": name.replace("_", " "), "where": folder.topic_url(name)}
    if unreachable:
        return row | {"goes": f"unknown: {unreachable}"}, unreachable
    try:
        with folder.open_topic(name) as topic:
            retention_ms = topic.settings().retention_ms
    except TopicMissing:
        return row | {"goes": "there is none"}, ""
    except TopicError as error:
        return row | {"goes": f"unknown: {error.message}"}, error.message
    if retention_ms < 0:
        return row | {"goes": "never: the topic keeps records for ever"}, ""
    return row | {"goes": f"after {whole_units(retention_ms)}: about {time_text(now_ms + retention_ms)} UTC"}, ""
