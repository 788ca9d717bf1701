"""Jars of a pom: Maven fetches them into the cache, under a name that changes with the pom."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.java import find_java
from tools.services.process import run_to_end

__all__ = ["Jars", "class_path"]

_FETCH_WAIT_S_MAX = 900.0
_POMS = Path(__file__).parent / "poms"


@dataclass(frozen=True)
class Jars:
    """The jars of a pom in this package; `name` is its file name without suffix."""

    name: str

    @property
    def version(self) -> str:
        """The version of the pom's first dependency, which is the service itself."""
        version = re.search(r"<dependency>.*?<version>(.*?)</version>", self._pom.read_text(), re.DOTALL)
        assert version is not None, f"{self._pom} names no dependency"
        return version[1]

    @property
    def entry(self) -> str:
        """The name of the cache entry."""
        digest = hashlib.sha256(self._pom.read_bytes()).hexdigest()[:8]
        return f"{self.name}-{self.version}-{digest}"

    def find(self, cache: Cache) -> Path | None:
        """Return the folder of jars, or None if they are not in the cache."""
        return cache.find(self.entry)

    def fetch(self, cache: Cache) -> Path:
        """Return the folder of jars, after fetching the missing ones.

        Raises:
            ServiceError: Java or Maven is missing, or the fetch failed.
        """
        return self.find(cache) or cache.get(self.entry, self._make)

    @property
    def _pom(self) -> Path:
        return _POMS / f"{self.name}.xml"

    def _make(self, folder: Path) -> None:
        find_java()
        maven = shutil.which("mvn")
        if maven is None:
            message = f"no mvn on PATH, which fetches the jars of {self.name}"
            raise ServiceError(message, help="install Maven (Debian: maven), or run .ci/bootstrap")
        pom = folder / "pom.xml"
        shutil.copy(self._pom, pom)
        command = [maven, "--quiet", "--batch-mode", "-Dstyle.color=never", "--file", str(pom)]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        run_to_end("mvn", command, folder, wait_s_max=_FETCH_WAIT_S_MAX)
        (folder / "mvn.log").unlink()


def class_path(jars: Path) -> str:
    """Return the class path of all jars in a folder, in sorted order."""
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
