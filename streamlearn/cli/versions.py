"""`streamlearn versions` and `show`: the versions of a model, what each is, and who serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model import ModelArgument, WordsArgument, model_and_versions, open_model
from streamlearn.cli.options import JsonOption
from streamlearn.cli.place import Place, at_place
from streamlearn.cli.rewind import said_skip
from streamlearn.cli.table import print_json, print_table
from streamlearn.cli.units import age_text, bytes_text, counted, time_text
from streamlearn.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from streamlearn.versions import Canary, Manifest, Node, Pointer

__all__ = ["show", "versions"]

_SHOWN = 20
Row = dict[str, Any]


@at_place
def versions(
    place: Place,
    model: ModelArgument = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show the newest so many.")] = _SHOWN,
    json: JsonOption = False,
) -> None:
    """Show the versions of MODEL: what each is, how old and how large, and which nodes serve it."""
    from streamlearn.versions import Requests, standings
    from streamlearn.versions.facts import node_facts, pointer_facts, version_facts

    found = open_model(model, place)
    known, pointer = found.known(), found.pointer
    waiting = Requests(found.store, found.name).waiting(known)
    nodes, said = found.nodes()
    standing = standings(pointer, known)
    now_ms = SYSTEM_CLOCK.wall_ms()
    rows = [version_facts(one, standing[one.version], nodes, now_ms) for one in known[-limit:]]
    if json:
        whole = {"model": found.name, "pointer": pointer_facts(pointer, nodes), "versions": rows}
        whole["nodes"] = [node_facts(one) for one in nodes]
        asked = [{"seq": one.seq, "to": one.to.version, "by": one.by, "reason": one.reason} for one in waiting]
        print_json(whole | {"requests": asked, "registry": said})
        return
    print_table([_for_people(row) for row in rows], whole=True)
    typer.echo(_said_of_pointer(pointer, len(known), len(rows)))
    if pointer.canary is not None:
        typer.echo(_said_of_canary(pointer.canary, nodes))
    for one in waiting:
        typer.echo(f"training is asked to go back to version {one.to.version} (request {one.seq} of {one.by})")
    if nodes:
        print_table([_of_node(one, now_ms) for one in nodes], whole=True)
    if said:
        typer.echo(f"nodes are not known: {said}", err=True)


@at_place
def show(
    place: Place,
    words: WordsArgument,
    json: JsonOption = False,
) -> None:
    """Show one version: what it is made of, what the judge said, what it has learned up to."""
    from streamlearn.versions import read_manifest, read_verdict, standings
    from streamlearn.versions.facts import manifest_facts, version_facts

    model, (version,) = model_and_versions(words, 1)
    found = open_model(model, place)
    one = found.one(version)
    standing = standings(found.pointer, found.known())[version]
    folder = found.history.folder(one.ref)
    manifest, verdict = read_manifest(found.store, folder), read_verdict(found.store, folder)
    nodes, _ = found.nodes()
    row = version_facts(one, standing, nodes, SYSTEM_CLOCK.wall_ms())
    if json:
        print_json(row | manifest_facts(manifest, verdict) | {"folder": folder, "sha256": one.ref.sha256})
        return
    facts = {name: value for name, value in _for_people(row).items() if value not in (None, "")}
    facts |= {"folder": f"{found.store.url}/{folder}", "sha256": one.ref.sha256, "fingerprint": manifest.fingerprint}
    print_table([{"what": name, "value": str(value)} for name, value in facts.items()], whole=True)
    print_table(_files(manifest), "files", whole=True)
    if manifest.positions:
        print_table(
            [_position(one) for one in manifest_facts(manifest, verdict)["positions"]], "learned up to", whole=True
        )
    if manifest.skips:
        print_table([{"never learned from": said_skip(one)} for one in manifest.skips], whole=True)
    if manifest.metrics:
        print_table([{"metric": name, "value": value} for name, value in sorted(manifest.metrics.items())], "metrics")
    if verdict is not None:
        checks = [
            {"check": one.check, "found": "ok" if one.is_ok else "REFUSED", "said": one.said}
            for one in verdict.findings
        ]
        typer.echo(f"verdict: {verdict.outcome}")
        if checks:
            print_table(checks)


def _for_people(row: Row) -> Row:
    shown = {name: value for name, value in row.items() if name not in ("age_s", "lacks", "run")}
    samples = row["samples"]
    return shown | {
        "kind": row["kind"],
        "bytes": bytes_text(row["bytes"]),
        "samples": None if samples is None else round(samples),
        "auc": None if row["auc"] is None else f"{row['auc']:.4f}",
        "state": f"{row['state']}: {row['lacks']}" if row["lacks"] else row["state"],
        "nodes": ", ".join(row["nodes"]),
        "age": "-" if row["age_s"] is None else age_text(row["age_s"] * 1000),
    }


def _of_node(one: Node, now_ms: int) -> Row:
    return {
        "node": one.name,
        "state": one.state,
        "serves": one.active or "-",
        "staged": ", ".join(str(version) for version in one.staged),
        "heard of": f"{age_text(max(0, now_ms - one.wall_ms))} ago",
        "said": one.said,
    }


def _said_of_pointer(pointer: Pointer, there: int, shown: int) -> str:
    more = f"the newest {shown} of {counted(there, 'version')}; " if shown < there else ""
    if pointer.active is None:
        return f"{more}none is served yet"
    held = "is held at" if pointer.held else "is at"
    at, why = time_text(pointer.wall_ms), f": {pointer.reason}" if pointer.reason else ""
    return f"{more}the pointer {held} {pointer.active.version}, moved by {pointer.by or 'unknown'} at {at} UTC{why}"


def _said_of_canary(canary: Canary, nodes: list[Node]) -> str:
    """Which version is tried, on how many of the requests, and by which nodes that have it."""
    from streamlearn.versions.facts import nodes_with

    names = ", ".join(nodes_with(nodes, canary)) or "no node that is known"
    does = "scores" if canary.shadow else "answers"
    return f"{canary.kind}: version {canary.version.version} {does} {canary.share:.1%} of the requests, on {names}"


def _files(manifest: Manifest) -> list[Row]:
    from streamlearn.versions.facts import file_facts

    return [one | {"bytes": bytes_text(one["bytes"])} for one in file_facts(manifest)]


def _position(said: Row) -> Row:
    return {name: said[name] for name in ("topic", "partition", "offset")}
