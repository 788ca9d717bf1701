"""Coverage: whether the files of all shards make one whole version. It opens none of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from streamlearn.errors import VersionDefect
from streamlearn.versions.format.manifest import PARTS, FileEntry, FileKind, Manifest
from streamlearn.versions.store.defect import defective

__all__ = ["check_manifest"]

# Files of a table come from every shard or, if not required, from none; files of the model come from one.
_TABLE_KINDS: tuple[FileKind, ...] = ("rows", "optimizer", "gone", "upkeep")
_REQUIRED: tuple[FileKind, ...] = ("rows", "gone")

_Group = tuple[FileKind, str | None]


def check_manifest(manifest: Manifest, path: str) -> None:
    """Check that a manifest is consistent, and that its files cover every part of every table once.

    Raises:
        VersionDefect: "incomplete", "reordered" or "older_run", at the given path.
    """
    _check_head(manifest, path)
    names = [table.name for table in manifest.tables]
    if len(set(names)) != len(names):
        raise _incomplete(path, f"two tables have one name: {', '.join(names)}")
    paths = [file.path for file in manifest.files]
    if len(set(paths)) != len(paths):
        duplicate = next(each for each in paths if paths.count(each) > 1)
        raise _incomplete(path, f"{duplicate} is listed twice")
    groups: dict[_Group, list[FileEntry]] = defaultdict(list)
    for file in manifest.files:
        if (file.kind in _TABLE_KINDS) != (file.table in names):
            raise _incomplete(path, f"{file.path} is {file.kind} of table {file.table}; tables are {', '.join(names)}")
        groups[file.kind, file.table].append(file)
    for group, files in groups.items():
        _check_group(group, files, path)
    for table in manifest.tables:
        for kind in _REQUIRED:
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
        this = f"{manifest.kind} {manifest.version} of run {manifest.run}"
        raise _incomplete(path, f"{this} stands for version {whole.version} of run {whole.run}")
    content = manifest.content_of
    if (content is not None) != (manifest.kind == "revert") and (content is None or whole is None):
        what = f"the content of version {content.version}" if content is not None else "no other version's content"
        raise _incomplete(path, f"a {manifest.kind} has {what}")
    if content is not None and content.version >= manifest.version:
        raise defective(path, "reordered", f"version {manifest.version} has the content of version {content.version}")


def _check_group(group: _Group, files: Sequence[FileEntry], path: str) -> None:
    """Check that each shard's files are complete, and that the shards together own every part once."""
    what = f"{group[0]} of table {group[1]!r}" if group[1] else group[0]
    by_shard: dict[int, list[FileEntry]] = defaultdict(list)
    for file in files:
        by_shard[file.shard].append(file)
    owned = []
    for shard, entries in by_shard.items():
        first, numbers = entries[0], sorted(entry.number for entry in entries)
        variants = {(entry.shards, entry.parts, entry.count) for entry in entries}
        if len(variants) > 1 or numbers != list(range(first.count)):
            raise _incomplete(path, f"shard {shard} has files {numbers} of {first.count} of {what}")
        owned.append(first.parts)
    shards = sorted({file.shards for file in files})
    if shards != [len(by_shard)] or set(by_shard) != set(range(len(by_shard))):
        raise _incomplete(path, f"{what} cover shards {sorted(by_shard)} of {shards}")
    ends = [0, *(end for _, end in sorted(owned))]
    if [begin for begin, _ in sorted(owned)] != ends[:-1] or ends[-1] != PARTS or any(b >= e for b, e in owned):
        raise _incomplete(path, f"{what} cover parts {sorted(owned)}; each of {PARTS} must occur once")


def _check_pairs(table: str, groups: dict[_Group, list[FileEntry]], path: str) -> None:
    """Check that the optimizer's files match those of the rows, record by record."""
    files = (groups.get((kind, table), ()) for kind in ("rows", "optimizer"))
    rows, optimizer = ({(file.shard, file.number): file.rows for file in entries} for entries in files)
    if optimizer and rows != optimizer:
        differ = sorted(set(rows.items()) ^ set(optimizer.items()))[0]
        what = f"the optimizer files of table {table!r} do not match its rows at (shard, file), rows: {differ}"
        raise _incomplete(path, what)


def _incomplete(path: str, what: str) -> VersionDefect:
    return defective(path, "incomplete", what)
