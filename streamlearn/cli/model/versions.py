"""`streamlearn versions` and `show`: the versions of a model, what each is, and who serves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import ModelArgument, WordsArgument, model_and_versions, open_model
from streamlearn.cli.model.place import Place, at_place
from streamlearn.cli.model.rewind import said_skip
from streamlearn.cli.options import JsonOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import age_text, bytes_text, counted, time_text
from streamlearn.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from streamlearn.versions import Node, Pointer
    from streamlearn.versions.format.manifest import Manifest
    from streamlearn.versions.pointer.moves import Canary

__all__ = ["show", "versions"]

_SHOWN, _RUNS_SHOWN = 20, 4
Row = dict[str, Any]


@at_place
def versions(
    place: Place,
    model: ModelArgument = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Number of versions to show, newest first.")
    ] = _SHOWN,
    json: JsonOption = False,
) -> None:
    """Show the versions of MODEL: state, age, size, and the nodes that serve each."""
    from streamlearn.versions import Requests
    from streamlearn.versions.pointer.facts import node_facts, pointer_facts, version_facts
    from streamlearn.versions.pointer.version_state import standings

    found = open_model(model, place)
    known, pointer = found.known(), found.pointer
    requests = Requests(found.store, found.name)
    waiting, refused = requests.waiting(known), requests.refused_last()
    nodes, said = found.nodes()
    standing = standings(pointer, known)
    now_ms = SYSTEM_CLOCK.wall_ms()
    rows = [version_facts(one, standing[one.version], nodes, now_ms) for one in known[-limit:]]
    if json:
        whole = {"model": found.name, "pointer": pointer_facts(pointer, nodes), "versions": rows}
        whole["nodes"] = [node_facts(one) for one in nodes]
        asked = [{"seq": one.seq, "to": one.to.version, "by": one.by, "reason": one.reason} for one in waiting]
        said_refused = refused and {"seq": refused.seq, "to": refused.to.version, "reason": refused.reason}
        print_json(whole | {"requests": asked, "refused": said_refused, "registry": said})
        return
    print_table([_for_people(row) for row in rows], whole=True)
    typer.echo(_said_of_pointer(pointer, len(known), len(rows)))
    if pointer.canary is not None:
        typer.echo(_said_of_canary(pointer.canary, nodes))
    for one in waiting:
        typer.echo(f"training was asked to go back to version {one.to.version} (request {one.seq} of {one.by})")
    if refused is not None:
        asked_for = f"version {refused.to.version} (request {refused.seq} of {refused.by})"
        typer.echo(f"training could not go back to {asked_for} and continues: {refused.reason}")
    if nodes:
        print_table([_of_node(one, now_ms) for one in nodes], whole=True)
    if said:
        typer.echo(f"nodes are unknown: {said}", err=True)


@at_place
def show(
    place: Place,
    words: WordsArgument,
    json: JsonOption = False,
) -> None:
    """Show one version: its files, the judge's verdict, and the positions up to which it has learned."""
    from streamlearn.versions.format.log import read_manifest
    from streamlearn.versions.format.verdict import read_verdict
    from streamlearn.versions.pointer.facts import manifest_facts, version_facts
    from streamlearn.versions.pointer.version_state import standings

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
        "staged": _runs_of(one.staged),
        "heard of": f"{age_text(max(0, now_ms - one.wall_ms))} ago",
        "said": one.said,
    }


def _runs_of(versions: Sequence[int]) -> str:
    """Numbers of versions as runs, the newest few.

    Examples:
        >>> _runs_of([7, 3, 4, 5]), _runs_of([]), _runs_of(range(1, 40, 2))
        ('3-5, 7', '', '..., 33, 35, 37, 39')
    """
    runs: list[tuple[int, int]] = []
    for version in sorted(versions):
        follows = runs and runs[-1][1] == version - 1
        runs[-1:] = [(runs[-1][0], version)] if follows else [*runs[-1:], (version, version)]
    said = [str(begin) if begin == end else f"{begin}-{end}" for begin, end in runs]
    return ", ".join(["..."] * (len(said) > _RUNS_SHOWN) + said[-_RUNS_SHOWN:])


def _said_of_pointer(pointer: Pointer, there: int, shown: int) -> str:
    more = f"the newest {shown} of {counted(there, 'version')}; " if shown < there else ""
    if pointer.active is None:
        return f"{more}no version is active yet"
    held = "is held at" if pointer.held else "is at"
    at, why = time_text(pointer.wall_ms), f": {pointer.reason}" if pointer.reason else ""
    return f"{more}the pointer {held} {pointer.active.version}, moved by {pointer.by or 'unknown'} at {at} UTC{why}"


def _said_of_canary(canary: Canary, nodes: list[Node]) -> str:
    """Which version is tried, on how many of the requests, and by which nodes that have it."""
    from streamlearn.versions.pointer.facts import nodes_with

    names = ", ".join(nodes_with(nodes, canary)) or "no known node"
    does = "scores" if canary.shadow else "answers"
    return f"{canary.kind}: version {canary.version.version} {does} {canary.share:.1%} of the requests, on {names}"


def _files(manifest: Manifest) -> list[Row]:
    from streamlearn.versions.pointer.facts import file_facts

    return [one | {"bytes": bytes_text(one["bytes"])} for one in file_facts(manifest)]


def _position(said: Row) -> Row:
    return {name: said[name] for name in ("topic", "partition", "offset")}
