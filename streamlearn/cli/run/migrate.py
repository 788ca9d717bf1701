"""`streamlearn migrate`: begins a changed application with what the one that it replaces has learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import author
from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.trainer.migration import Part

__all__ = ["migrate"]

_OUTCOMES = {
    "kept": "kept",
    "widened": "kept; what is new begins at zero (inputs) or at initial values (outputs)",
    "new": "new",
    "lost": "lost, starts from initial values",
    "gone": "gone",
}


def migrate(
    app: AppArgument,
    from_: Annotated[
        Path, typer.Option("--from", metavar="FOLDER", help="The folder of the application that APP replaces.")
    ],
    version: Annotated[
        int | None, typer.Option(metavar="VERSION", min=1, help="Its version to begin with; the newest by default.")
    ] = None,
    relearn: Annotated[
        bool,
        typer.Option(
            "--relearn",
            help="Learn all retained samples again. Needed where what was learned cannot be kept; `switch` then waits "
            "until an hour of new samples shows that APP is as good.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is kept and what is lost, and write nothing.")
    ] = False,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Begin APP with what another application learned, so that it can replace it while both run."""
    from streamlearn.apps import load_app
    from streamlearn.apps.sides import check_sides
    from streamlearn.models.tensorflow_load import load_tensorflow
    from streamlearn.versions import Chain, open_store
    from streamlearn.versions.pointer.switch_log import SwitchLog

    new, old = load_app(app, tuple(set_ or ())), load_app(from_)
    check_sides(old, new)
    _check_events(old, new)
    store = open_store(new.store_url, settings=new.settings.versions)
    source = Chain.find(store, old.app.name, version)
    load_tensorflow()  # after all that can be refused without it
    from streamlearn.trainer import put_graphs, samples_of
    from streamlearn.trainer.migration import Migration

    migration = Migration(old, new, store, source, is_relearning=relearn)
    facts: dict[str, Any] = {"from": old.app.name, "from_version": source.version, "model": new.app.name}
    parts = [_part_row(part) for part in migration.parts]
    if not json:
        print_table(parts)
    if not dry_run:
        migration.check()
        with samples_of(new) as topic:
            # The record comes first: nodes of the new application then never take over by themselves.
            switch = SwitchLog(store, new.app.served_name).begin(old.app.name, new.app.name, by=author())
            ref, rows = migration.write(topic, put_graphs(new, migration.model, store), f"migrate by {author()}")
        facts |= {"version": ref.version, "rows": dict(rows), "switch": switch.seq}
    if json:
        print_json(facts | {"parts": parts, "written": not dry_run})
    elif dry_run:
        begins = "; it has to learn all retained samples again (--relearn)" if migration.lost else ""
        typer.echo(f"{new.app.name} would begin with version {source.version} of {old.app.name}{begins}")
    else:
        counts = ", ".join(f"{count:,} rows of {name}" for name, count in rows.items()) or "no rows"
        typer.echo(f"{new.app.name} begins with version {source.version} of {old.app.name}: {counts}")
        typer.echo(
            f"next: `streamlearn up {app} --beside {from_}`; once ready: `streamlearn switch {app} --to {new.app.name}`"
        )


def _part_row(part: Part) -> dict[str, str]:
    why = f": {part.why}" if part.why else ""
    return {"part": part.kind, "name": part.name, "what was learned": f"{_OUTCOMES[part.outcome]}{why}"}


def _check_events(old: AppFolder, new: AppFolder) -> None:
    """Check that the new application reads the events of the old one."""
    from streamlearn.events.schema_lookup import named_schemas
    from streamlearn.schemas import action_schema, impression_schema

    known = {schema.fingerprint for schema in named_schemas(new)[0]}
    known |= {impression_schema(new.app).fingerprint, action_schema(new.app).fingerprint}
    own = [schema for schema in (impression_schema(old.app), action_schema(old.app)) if schema.fingerprint not in known]
    if own:
        old_app, new_app = old.folder, new.folder
        files = ", ".join(f'"{old.app.name}/{schema.name.lower()}.avsc"' for schema in own)
        message = f"{new.app.name!r} cannot read events that {old.app.name!r} wrote: it does not know their schema"
        help = (
            f"run `streamlearn schema {old_app} --out {new_app}/{old.app.name}`, and add {files} to old_schemas "
            f"below [topics] in {new.folder}/app.toml"
        )
        raise UsageError(message, help=help)
    older = [
        name
        for name, schema in zip(old.settings.topics.old_schemas, named_schemas(old)[0], strict=True)
        if schema.fingerprint not in known
    ]
    if older:
        message = (
            f"{new.app.name!r} cannot read events of before {old.app.name!r}: old_schemas lacks {', '.join(older)}"
        )
        help = f"copy these files from {old.folder} to {new.folder}, and add them to old_schemas there"
        raise UsageError(message, help=help)
