"""The Java runtime that Kafka and the Flink job server run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from streamlearn.errors import ServiceError

__all__ = ["MAJOR_MIN", "Java", "find_java"]

MAJOR_MIN = 17
_ASK_WAIT_S_MAX = 30.0
_HELP = (
    f"install Java {MAJOR_MIN} or newer (Debian: default-jre-headless, or run .ci/bootstrap) "
    "and put it on PATH, or name its folder with JAVA_HOME"
)


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        path: The `java` program.
        version: As it states it, such as `17.0.15`.
    """

    path: Path
    version: str


def find_java() -> Java:
    """The runtime in JAVA_HOME, else the one on PATH.

    Raises:
        ServiceError: There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME ({home})" if home else "PATH"
        message = f"no java in {where}"
        raise ServiceError(message, help=_HELP)
    version = _stated_version(Path(found).resolve()) or _asked_version(found)
    major = int(version.removeprefix("1.").split(".")[0])
    if major < MAJOR_MIN:
        message = f"{found} is Java {version}, and {MAJOR_MIN} or newer is needed"
        raise ServiceError(message, help=_HELP)
    return Java(Path(found), version)


def _stated_version(program: Path) -> str | None:
    """Read from the runtime's `release` file: a hundred times faster than asking the runtime."""
    release = program.parent.parent / "release"
    if not release.is_file():
        return None
    stated = re.search(r'^JAVA_VERSION="([\d.]+)', release.read_text(errors="replace"), re.MULTILINE)
    return stated[1] if stated else None


def _asked_version(program: str) -> str:
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_ASK_WAIT_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{program} does not run: {error}"
        raise ServiceError(message, help=_HELP) from error
    stated = re.search(r'version "([\d.]+)', answer.stderr)
    if stated is None:
        message = f"{program} states no version: {answer.stderr.strip()[:200]!r}"
        raise ServiceError(message, help=_HELP)
    return stated[1]
