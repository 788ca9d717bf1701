"""The source tree of an earlier commit with a native build of its own, for jobs that take turns with those of today."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.streams.ingest_place import ROOT
from streamlearn.errors import ServiceError

__all__ = ["prism_of", "tree_of"]

_BUILD_S_MAX, _STEP_S_MAX = 3_600.0, 600.0


@contextmanager
def tree_of(commit: str, folder: Path) -> Iterator[Path]:
    """Yield a folder with the streamlearn of a commit, built, and the benchmarks of today.

    Crates of others are built once, in `target/before` of this tree. `commit` may also be the folder of a tree that was
    built before; nothing is written there.

    Raises:
        ServiceError: The commit does not exist, or its build failed.
    """
    with ExitStack() as stack:
        tree = Path(commit).resolve() if Path(commit).is_dir() else stack.enter_context(_built(commit, folder))
        mixed = folder / "mixed"
        mixed.mkdir()
        for name in ("streamlearn", "examples", "tools", "benchmarks"):
            (mixed / name).symlink_to((ROOT if name == "benchmarks" else tree) / name)
        yield mixed


@contextmanager
def _built(commit: str, folder: Path) -> Iterator[Path]:
    tree, target = folder / "before", ROOT / "target" / "before"
    _run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], ROOT, _STEP_S_MAX)
    try:
        build = ["cargo", "build", "--release", "--quiet", "-p", "streamlearn-python", "--features"]
        build += ["pyo3/extension-module", "--target-dir", str(target)]
        _run(build, tree, _BUILD_S_MAX)
        shutil.copy(target / "release" / "lib_native.so", tree / "streamlearn" / "_native.abi3.so")
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=False, timeout=_STEP_S_MAX)


def prism_of(tree: Path) -> str:
    """Return the Prism that a tree's tools fetch."""
    code = "from tools.services import prism_path; print(prism_path())"
    return _run([sys.executable, "-c", code], tree, _STEP_S_MAX).strip()


def _run(words: list[str], folder: Path, wait_s_max: float) -> str:
    env = os.environ | {"CARGO_INCREMENTAL": "0"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=wait_s_max, check=False)
    if done.returncode:
        message = f"{' '.join(words[:3])} ended with status {done.returncode}"
        raise ServiceError(message, help=done.stderr[-2_000:])
    return done.stdout
