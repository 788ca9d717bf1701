"""Revision: the state of the code in an application's folder: its git commit, and the digests of its files."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Revision", "revision_of"]

_FILES = ("app.py", "app.toml", "model.py")
_GIT_WAIT_S = 5.0


@dataclass(frozen=True)
class Revision:
    """The state of the code in a folder.

    Attributes:
        commit: The commit of its git work tree; empty outside one, or without git.
        is_changed: Whether tracked files of the folder differ from the commit; None without one.
        sha256: The digests of the application's own files, by name.
    """

    commit: str
    is_changed: bool | None
    sha256: dict[str, str]


def revision_of(folder: Path) -> Revision:
    """Read the state of the code in a folder; what git does not answer within seconds stays unknown."""
    files = [folder / name for name in _FILES]
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".") if commit else None
    return Revision(commit or "", None if status is None else bool(status), digests)


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
