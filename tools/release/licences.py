"""Licences of the crates that are linked into the native module: `python -m tools.release.licences` writes their texts.

Procedural macros and what only builds need are not linked, and not listed.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ALLOWED", "NOTICE", "ROOT", "TARGETS", "Crate", "chosen_licences", "linked_crates", "notice"]

ROOT = Path(__file__).parents[2]
NOTICE = ROOT / "native" / "LICENSES-OF-CRATES.txt"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
"""The processors that wheels are built for."""
ALLOWED = ("Apache-2.0", "MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "Zlib")
"""Licences that a linked crate may have. Of several that a crate offers, the first of these is chosen."""

_MODULE = "streamlearn-python"
_TEXTS = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice)")
_RULE = "=" * 100
_HEAD = """\
Licences of what is linked into streamlearn's native module, beside its own code.

Written by `python -m tools.release.licences`. Crates under Apache-2.0 have no text here, but their notices: the text
is in streamlearn's own LICENSE. Rust's standard library is linked too, under MIT or Apache-2.0; of these, Apache-2.0
is chosen.
"""


@dataclass(frozen=True, order=True)
class Crate:
    """A linked crate: its name, version, the licence that it declares, and the folder of its source."""

    name: str
    version: str
    licence: str
    folder: Path


def linked_crates(target: str) -> list[Crate]:
    """Return the crates that are linked into the native module for a target, without those of this workspace."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting, linked = [name for name, package in packages.items() if package["name"] == _MODULE], set[str]()
    while waiting:
        name = waiting.pop()
        if name in linked or any("proc-macro" in target["kind"] for target in packages[name]["targets"]):
            continue
        linked.add(name)
        dependencies = nodes[name]["deps"]
        waiting += [each["pkg"] for each in dependencies if any(kind["kind"] is None for kind in each["dep_kinds"])]
    return sorted(_crate(packages[name]) for name in linked - set(metadata["workspace_members"]))


def chosen_licences(licence: str) -> tuple[str, ...]:
    """Return the licences under which a crate is used; empty if none that it offers is allowed.

    Examples:
        >>> chosen_licences("MIT OR Apache-2.0"), chosen_licences("Apache-2.0 AND ISC"), chosen_licences("GPL-3.0")
        (('Apache-2.0',), ('Apache-2.0', 'ISC'), ())
    """
    offers = [tuple(offer.split(" AND ")) for offer in re.split(r" OR | ?/ ?", licence)]
    allowed = [offer for offer in offers if all(name in ALLOWED for name in offer)]
    return min(allowed, key=lambda offer: [ALLOWED.index(name) for name in offer], default=())


def notice() -> str:
    """Return the notice that comes with wheels: each linked crate with its licence, and the texts."""
    crates = sorted({crate for target in TARGETS for crate in linked_crates(target)})
    texts = dict[str, tuple[str, list[str]]]()
    lines = []
    for crate in crates:
        chosen = chosen_licences(crate.licence)
        named = f"{crate.name} {crate.version}"
        lines.append(f"{named}: {' and '.join(chosen) or f'{crate.licence}, which is not allowed'}")
        for text in _texts(crate.folder, is_apache=chosen == ("Apache-2.0",)):
            texts.setdefault(" ".join(text.split()), (text, []))[1].append(named)
    parts = (f"{_RULE}\n{', '.join(names)}\n\n{text}" for text, names in texts.values())
    return "\n".join([_HEAD, *lines, "", *parts])


def _crate(package: dict[str, str]) -> Crate:
    return Crate(package["name"], package["version"], package["license"], Path(package["manifest_path"]).parent)


def _texts(folder: Path, *, is_apache: bool) -> Iterator[str]:
    for file in sorted(folder.iterdir()):
        if _TEXTS.match(file.name) and file.is_file() and (not is_apache or "notice" in file.name.lower()):
            yield "\n".join(line.rstrip() for line in file.read_text(errors="replace").splitlines()) + "\n"


if __name__ == "__main__":
    NOTICE.write_text(notice())
