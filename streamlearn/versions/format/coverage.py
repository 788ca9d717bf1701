"""Coverage: whether files of all shards make one whole version. It opens none of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from streamlearn.errors import VersionDefect
from streamlearn.versions.format.manifest import PARTS, FileEntry, FileKind, Manifest
from streamlearn.versions.store.defect import defective

__all__ = ["check_manifest"]

# Files of a table come from every shard or, where they are not needed, from none; the model's come from one.
_OF_A_TABLE: tuple[FileKind, ...] = ("rows", "optimizer", "gone", "upkeep")
_NEEDED: tuple[FileKind, ...] = ("rows", "gone")

_Group = tuple[FileKind, str | None]


def check_manifest(manifest: Manifest, path: str) -> None:
    """Check that a manifest contradicts itself nowhere, and that its files cover every part of every table once.

    Args:
        manifest: The manifest.
        path: Where it is, for the error.

    Raises:
        VersionDefect: "incomplete", and what is missing or there twice.
    """
    _check_head(manifest, path)
    names = [table.name for table in manifest.tables]
    if len(set(names)) != len(names):
        raise _incomplete(path, f"two tables have one name: {', '.join(names)}")
    paths = [file.path for file in manifest.files]
    if len(set(paths)) != len(paths):
        twice = next(one for one in paths if paths.count(one) > 1)
        raise _incomplete(path, f"{twice} is listed twice")
    groups: dict[_Group, list[FileEntry]] = defaultdict(list)
    for file in manifest.files:
        if (file.kind in _OF_A_TABLE) != (file.table in names):
            raise _incomplete(path, f"{file.path} is {file.kind} of table {file.table}; tables are {', '.join(names)}")
        groups[file.kind, file.table].append(file)
    for group, files in groups.items():
        _check_group(group, files, path)
    for table in manifest.tables:
        for kind in _NEEDED:
            if (kind, table.name) not in groups:
                raise _incomplete(path, f"table {table.name!r} has no files of {kind}")
        _check_pairs(table.name, groups, path)
        if table.optimizer is not None and ("optimizer", table.name) not in groups:
            raise _incomplete(path, f"table {table.name!r} learns, but its optimizer is missing")


def _check_head(manifest: Manifest, path: str) -> None:
    parent, whole = manifest.parent, manifest.stands_for
    if parent is None and manifest.kind != "base":
        raise _incomplete(path, f"a {manifest.kind} has no parent")
    if parent is not None and parent.version >= manifest.version:
        raise defective(path, "reordered", f"version {manifest.version} follows version {parent.version}")
    if parent is not None and parent.run > manifest.run:
        raise defective(path, "older_run", f"run {manifest.run} follows run {parent.run}")
    if whole is not None and (manifest.kind, whole.version, whole.run) != ("base", manifest.version, manifest.run):
        said = f"{manifest.kind} {manifest.version} of run {manifest.run}"
        raise _incomplete(path, f"{said} stands for version {whole.version} of run {whole.run}")
    content = manifest.content_of
    if (content is not None) != (manifest.kind == "revert") and (content is None or whole is None):
        said = f"the content of version {content.version}" if content is not None else "no other version's content"
        raise _incomplete(path, f"a {manifest.kind} has {said}")
    if content is not None and content.version >= manifest.version:
        raise defective(path, "reordered", f"version {manifest.version} has the content of version {content.version}")


def _check_group(group: _Group, files: Sequence[FileEntry], path: str) -> None:
    """Each shard's files are all there, and the parts of all shards are every part once."""
    what = f"{group[0]} of table {group[1]!r}" if group[1] else group[0]
    by_shard: dict[int, list[FileEntry]] = defaultdict(list)
    for file in files:
        by_shard[file.shard].append(file)
    owned = []
    for shard, mine in by_shard.items():
        first = mine[0]
        said = {(file.shards, file.parts, file.count) for file in mine}
        if len(said) > 1 or sorted(file.number for file in mine) != list(range(first.count)):
            numbers = sorted(file.number for file in mine)
            raise _incomplete(path, f"shard {shard} has files {numbers} of {first.count} of {what}")
        owned.append(first.parts)
    if {file.shards for file in files} != {len(by_shard)} or set(by_shard) != set(range(len(by_shard))):
        shards = sorted({file.shards for file in files})
        raise _incomplete(path, f"{what} cover shards {sorted(by_shard)} of {shards}")
    ends = [0, *(end for _, end in sorted(owned))]
    if [begin for begin, _ in sorted(owned)] != ends[:-1] or ends[-1] != PARTS or any(b >= e for b, e in owned):
        raise _incomplete(path, f"{what} cover parts {sorted(owned)}; each of {PARTS} must occur once")


def _check_pairs(table: str, groups: dict[_Group, list[FileEntry]], path: str) -> None:
    """The optimizer's files lie beside those of the rows, record by record."""
    rows, optimizer = (_sizes(groups.get((kind, table), ())) for kind in ("rows", "optimizer"))
    if optimizer and rows != optimizer:
        differ = sorted(set(rows.items()) ^ set(optimizer.items()))[0]
        raise _incomplete(
            path, f"the optimizer files of table {table!r} do not match its rows at (shard, file), rows: {differ}"
        )


def _sizes(files: Iterable[FileEntry]) -> dict[tuple[int, int], int]:
    return {(file.shard, file.number): file.rows for file in files}


def _incomplete(path: str, what: str) -> VersionDefect:
    return defective(path, "incomplete", what)
