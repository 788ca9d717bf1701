"""Build: wheels for every Linux whose C library is of 2018 or newer, the source, a bill of materials, and sums.

Zig links them: a system's own linker takes the newest functions of the C library that it finds.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from streamlearn.errors import ServiceError, UsageError
from tools.release.licences import ROOT, TARGETS

__all__ = [
    "DIST",
    "PLATFORM",
    "build_image",
    "build_release",
    "build_wheel",
    "check_changelog",
    "release_version",
    "this_wheel",
]

DIST = ROOT / "dist"
PLATFORM = "manylinux_2_28"
"""The tag of wheels. maturin compares it with what the native module asks of the C library."""

_ZIG, _ZIG_LOCK = ROOT / "target" / "zig", ROOT / "packaging" / "zig.lock"
_BIN = Path(sys.executable).parent


def release_version() -> str:
    """Return the version of the Cargo workspace."""
    return str(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"])


def check_changelog(text: str, version: str) -> None:
    """Check that the newest heading of a changelog is a version's.

    Raises:
        UsageError: It is another version's, or there is none.
    """
    newest = re.search(r"^## (\S+)", text, re.MULTILINE)
    if newest is None or newest[1] != version:
        message = f"the newest heading of CHANGELOG.md is {newest[1] if newest else 'missing'}, not {version}"
        raise UsageError(message, help=f"say below a heading `## {version}` what it changes, or correct Cargo.toml")


def build_wheel(target: str, source: Path = ROOT, out: Path = DIST) -> Path:
    """Build the wheel of a target, with a stripped module.

    Raises:
        ServiceError: This machine cannot build for the target.
    """
    command = ["rustc", "--print", "target-libdir", "--target", target]
    library = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    if not Path(library).is_dir():
        message = f"this Rust has no standard library for {target}"
        raise ServiceError(message, help=f"rustup target add {target}")
    _fetch_zig()
    pattern = f"streamlearn-*_{target.partition('-')[0]}.whl"
    for old in out.glob(pattern):
        old.unlink()
    words = ("--zig", "--strip", "--target", target, "--compatibility", PLATFORM, "--auditwheel", "check")
    _maturin(source, "build", "--locked", *words, "--out", str(out))
    (wheel,) = out.glob(pattern)
    return wheel


def this_wheel() -> Path:
    """Return the wheel in `dist` for this processor.

    Raises:
        ServiceError: There is none, or it was built from other files than those of this source.
    """
    wheel = next(DIST.glob(f"streamlearn-*_{platform.machine()}.whl"), None)
    if wheel is None:
        message = f"there is no wheel for {platform.machine()} in {DIST}"
        raise ServiceError(message, help="make wheel")
    with zipfile.ZipFile(wheel) as file:
        packed = {name: file.read(name) for name in file.namelist() if name.endswith(".py")}
    source = {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in (ROOT / "streamlearn").rglob("*.py")}
    if packed != source:
        message = f"{wheel} was built from other files than those in {ROOT / 'streamlearn'}"
        raise ServiceError(message, help="make wheel")
    return wheel


def build_image(kind: str, wheel: Path) -> str:
    """Build an image by `packaging/container/build.sh`, and return its name.

    Raises:
        ServiceError: It failed, or this machine cannot build one.
    """
    script = ROOT / "packaging" / "container" / "build.sh"
    environment = {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [script, kind, wheel],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        message = f"the image {kind} was not built: {done.stderr.strip()[-2_000:]}"
        raise ServiceError(message)
    return f"localhost/streamlearn:{kind}"


def build_release(note: Callable[[str], None]) -> list[str]:
    """Build all that a release has into `dist`, and return what this machine cannot build.

    Raises:
        UsageError: The newest version of the changelog is another one.
    """
    version, missing = release_version(), list[str]()
    check_changelog((ROOT / "CHANGELOG.md").read_text(), version)
    for old in DIST.glob("*"):
        old.unlink()
    for target in TARGETS:
        note(f"wheel for {target}")
        try:
            wheel = build_wheel(target)
        except ServiceError as error:
            missing.append(f"wheel for {target}: {error}")
            continue
        materials = DIST / f"{wheel.name.removesuffix('.whl')}.cyclonedx.json"
        materials.write_bytes(bill_of_materials(wheel))
    note("source")
    _maturin(ROOT, "sdist", "--out", str(DIST))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    return missing


def bill_of_materials(wheel: Path) -> bytes:
    """Return the CycloneDX document of a wheel, which maturin writes from Cargo.lock."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if ".dist-info/sboms/" in name]
        return file.read(name)


def _fetch_zig() -> None:
    words = ["pip", "install", "--quiet", "--require-hashes", "-r", str(_ZIG_LOCK), "--target", str(_ZIG)]
    subprocess.run([_BIN / "uv", *words, "--python", sys.executable], check=True)


def _maturin(source: Path, *words: str) -> None:
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    # A folder of Cargo for each source: in one, Cargo takes the crates of another source for those of this one if its
    # files are older.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(source / "target"), "PATH": path, "PYTHONPATH": str(_ZIG)}
    subprocess.run([_BIN / "maturin", *words], cwd=source, env=environment, check=True)
