"""`streamlearn versions` and `show`: the versions of a model, their states, and the nodes that serve them."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import ModelArgument, WordsArgument, model_and_versions, open_model
from streamlearn.cli.options import JsonOption, Place, at_place
from streamlearn.cli.output.table import print_json, print_table, without_empty
from streamlearn.cli.output.units import age_text, bytes_text, counted, runs_text
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.printable import printable
from streamlearn.times import time_text

if TYPE_CHECKING:
    from streamlearn.versions import Finding, Known, Node, Pointer
    from streamlearn.versions.pointer.model import Model
    from streamlearn.versions.pointer.moves import Canary
    from streamlearn.versions.pointer.run_origin import RunOrigin

__all__ = ["show", "versions"]

_SHOWN = 20
Row = dict[str, Any]


@at_place
def versions(
    place: Place,
    name: ModelArgument = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Number of versions to show, newest first.")] = _SHOWN,
    json: JsonOption = False,
) -> None:
    """Show the versions of MODEL: state, age, size, and the nodes that serve each."""
    from streamlearn.versions import Requests
    from streamlearn.versions.format.version_note import read_notes
    from streamlearn.versions.pointer.deletion import Deletions, obeyed_by
    from streamlearn.versions.pointer.facts import node_facts, note_facts, pointer_facts, version_facts
    from streamlearn.versions.pointer.moves import standings
    from streamlearn.versions.pointer.rebuild import last_not_gc

    model = open_model(name, place)
    known, pointer = model.known(), model.pointer
    requests = Requests(model.store, model.name)
    waiting, refused = requests.waiting(known), requests.refused_last()
    nodes, no_nodes_reason = model.nodes()
    missing = model.missing(nodes)
    states = standings(pointer, known)
    relearning = _relearning(model, known[-1])
    obeyed = obeyed_by(known[-1])
    deletions = [deletion for deletion in Deletions(model.store, model.name).all() if deletion.seq > obeyed]
    now_ms = SYSTEM_CLOCK.wall_ms()
    rows = [version_facts(entry, states[entry.version], nodes, now_ms) for entry in known[-limit:]]
    if json:
        for row, entry in zip(rows, known[-limit:], strict=True):
            row["notes"] = note_facts(read_notes(model.store, model.history.folder(entry.ref)))
        facts: Row = {"model": model.name, "pointer": pointer_facts(pointer, nodes, model.log.read), "versions": rows}
        facts["nodes"] = [node_facts(node) for node in nodes]
        facts["silent"] = [node_facts(node) for node in missing]
        facts["requests"] = [
            {"seq": request.seq, "to": request.to.version, "by": request.by, "reason": request.reason}
            for request in waiting
        ]
        facts["deletions"] = [{"seq": one.seq, "by": one.by, "reason": one.reason} for one in deletions]
        facts["relearning"] = relearning or None
        facts["refused"] = refused and {"seq": refused.seq, "to": refused.to.version, "reason": refused.reason}
        print_json(facts | {"registry": no_nodes_reason})
        return
    print_table(without_empty([_for_people(row) for row in rows], ["mae", "top 100"]), whole=True)
    typer.echo(_pointer_line(last_not_gc(pointer, model.log.read), len(known), len(rows)))
    if pointer.canary is not None:
        typer.echo(_canary_line(pointer.canary, nodes))
    if relearning:
        typer.echo(relearning)
    for request in waiting:
        source = f"request {request.seq} of {printable(request.by)}"
        typer.echo(f"training was asked to go back to version {request.to.version} ({source})")
    for deletion in deletions:
        typer.echo(f"deletion {deletion.seq} of {printable(deletion.by)} is not carried out yet")
    if refused is not None:
        target = f"version {refused.to.version} (request {refused.seq} of {printable(refused.by)})"
        typer.echo(f"training could not go back to {target} and continues: {printable(refused.reason)}")
    if nodes or missing:
        rows = [_node_row(node, now_ms) for node in nodes]
        print_table([*rows, *(_node_row(node, now_ms) | {"state": "silent"} for node in missing)], whole=True)
    if no_nodes_reason:
        typer.echo(f"nodes are unknown: {printable(no_nodes_reason)}", err=True)


@at_place
def show(place: Place, words: WordsArgument, json: JsonOption = False) -> None:
    """Show one version: its files, positions, verdict and notes, and the code and settings of the run that made it."""
    from msgspec import to_builtins

    from streamlearn.versions.format.log import read_manifest
    from streamlearn.versions.format.verdict import read_verdict
    from streamlearn.versions.format.version_note import read_notes
    from streamlearn.versions.pointer.facts import file_facts, manifest_facts, version_facts
    from streamlearn.versions.pointer.moves import standings
    from streamlearn.versions.pointer.request import skip_text
    from streamlearn.versions.pointer.run_origin import read_origin

    name, (version,) = model_and_versions(words, 1)
    model = open_model(name, place)
    entry = model.one(version)
    state = standings(model.pointer, model.known())[version]
    folder = model.history.folder(entry.ref)
    manifest, verdict = read_manifest(model.store, folder), read_verdict(model.store, folder)
    nodes, _ = model.nodes()
    row = version_facts(entry, state, nodes, SYSTEM_CLOCK.wall_ms())
    notes, origin = read_notes(model.store, folder), read_origin(model.store, model.name, entry.ref.run)
    details = manifest_facts(manifest, verdict, notes)
    if json:
        code = {"run_origin": origin and to_builtins(origin)}
        print_json(row | details | code | {"folder": folder, "sha256": entry.ref.sha256})
        return
    facts = {name: value for name, value in _for_people(row).items() if value not in (None, "")}
    facts |= {"folder": f"{model.store.url}/{folder}", "sha256": entry.ref.sha256, "fingerprint": manifest.fingerprint}
    print_table([{"what": name, "value": str(value)} for name, value in facts.items()], whole=True)
    print_table([file | {"bytes": bytes_text(file["bytes"])} for file in file_facts(manifest)], "files", whole=True)
    if manifest.positions:
        columns = ("topic", "partition", "offset")
        rows = [{column: position[column] for column in columns} for position in details["positions"]]
        print_table(rows, "learned up to", whole=True)
    if manifest.skips:
        print_table([{"never learned from": skip_text(skip)} for skip in manifest.skips], whole=True)
    if manifest.metrics:
        print_table([{"metric": name, "value": value} for name, value in sorted(manifest.metrics.items())], "metrics")
    if origin is not None:
        print_table(_origin_rows(origin), f"run {origin.run}", whole=True)
    if notes:
        rows = [{"at": time_text(note.wall_ms), "by": note.by, "note": note.text} for note in notes]
        print_table(rows, "notes", whole=True)
    if verdict is not None:
        typer.echo(f"verdict: {verdict.outcome}")
        if verdict.findings:
            rows = [{"check": check.check, "found": _found(check), "said": check.said} for check in verdict.findings]
            print_table(rows)


def _origin_rows(origin: RunOrigin) -> list[Row]:
    changed = {True: ", with changes", False: "", None: ""}[origin.is_changed]
    facts = {"release": origin.release, "commit": f"{origin.commit or 'unknown'}{changed}"}
    facts |= {f"sha256 of {name}": digest for name, digest in origin.sha256.items()}
    facts |= {name: dumps(value, ensure_ascii=False) for name, value in origin.settings.items()}
    return [{"what": name, "value": value} for name, value in facts.items()]


def _found(check: Finding) -> str:
    return "not checked" if not check.is_checked else "ok" if check.is_ok else "REFUSED"


def _for_people(row: Row) -> Row:
    samples = row["samples"]
    names = {"retrieval_hit_100": "top 100"}
    return {names.get(name, name): value for name, value in row.items() if name not in ("age_s", "lacks", "run")} | {
        "bytes": bytes_text(row["bytes"]),
        "samples": None if samples is None else round(samples),
        "auc": None if row["auc"] is None else f"{row['auc']:.4f}",
        "mae": None if row["mae"] is None else f"{row['mae']:.4g}",
        "top 100": None if row["retrieval_hit_100"] is None else f"{row['retrieval_hit_100']:.4f}",
        "state": f"{row['state']}: {row['lacks']}" if row["lacks"] else row["state"],
        "nodes": ", ".join(row["nodes"]),
        "age": "-" if row["age_s"] is None else age_text(row["age_s"] * 1000),
    }


def _node_row(node: Node, now_ms: int) -> Row:
    return {
        "node": node.name,
        "state": node.state,
        "serves": node.active or "-",
        "staged": runs_text(node.staged),
        "heard of": f"{age_text(max(0, now_ms - node.wall_ms))} ago",
        "said": node.said,
    }


def _pointer_line(pointer: Pointer, count: int, shown: int) -> str:
    more = f"the newest {shown} of {counted(count, 'version')}; " if shown < count else ""
    if pointer.active is None:
        return f"{more}no version is active yet"
    verb = "is held at" if pointer.held else "is at"
    time, reason = time_text(pointer.wall_ms), f": {printable(pointer.reason)}" if pointer.reason else ""
    author = printable(pointer.by) or "unknown"
    return f"{more}the pointer {verb} {pointer.active.version}, moved by {author} at {time} UTC{reason}"


def _relearning(model: Model, newest: Known) -> str:
    """Return why a model has no figures while it relearns what the one that it replaces has learned."""
    from streamlearn.versions.format.log import read_manifest
    from streamlearn.versions.format.manifest import Origin

    origin = read_manifest(model.store, model.history.folder(newest.ref)).origin if newest.is_whole else None
    if not isinstance(origin, Origin) or not origin.is_relearned or not origin.clock_ms:
        return ""
    if (newest.watermark_ms or 0) >= origin.clock_ms:
        return ""
    until = f"impressions before {time_text(origin.clock_ms)} UTC"
    return f"it relearns {until}, which {origin.model} has learned: their figures are not comparable, and left out"


def _canary_line(canary: Canary, nodes: list[Node]) -> str:
    from streamlearn.versions.pointer.facts import nodes_with

    names = printable(", ".join(nodes_with(nodes, canary))) or "no known node"
    verb = "scores" if canary.shadow else "answers"
    return f"{canary.kind}: version {canary.version.version} {verb} {canary.share:.1%} of the requests, on {names}"
