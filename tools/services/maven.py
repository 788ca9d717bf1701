"""Jars named by a pom: fetched by Maven into the cache, under a name that changes whenever the pom does."""

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
    """The jars of one pom of this package.

    Attributes:
        name: The pom's file name without its suffix.
    """

    name: str

    @property
    def version(self) -> str:
        """The version of the pom's first dependency, which is the service itself."""
        stated = re.search(r"<dependency>.*?<version>(.*?)</version>", self._pom.read_text(), re.DOTALL)
        assert stated is not None, f"{self._pom} names no dependency"
        return stated[1]

    @property
    def entry(self) -> str:
        """The cache entry's name."""
        digest = hashlib.sha256(self._pom.read_bytes()).hexdigest()[:8]
        return f"{self.name}-{self.version}-{digest}"

    def find(self, cache: Cache) -> Path | None:
        """The folder of jars, or None when they were not fetched yet."""
        return cache.find(self.entry)

    def fetch(self, cache: Cache) -> Path:
        """The folder of jars, fetched first when they are not there.

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
            message = f"no mvn on PATH to fetch the jars of {self.name} with"
            raise ServiceError(message, help="install Maven (Debian: maven), or run .ci/bootstrap")
        pom = folder / "pom.xml"
        shutil.copy(self._pom, pom)
        command = [maven, "--quiet", "--batch-mode", "-Dstyle.color=never", "--file", str(pom)]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        run_to_end("mvn", command, folder, wait_s_max=_FETCH_WAIT_S_MAX)
        (folder / "mvn.log").unlink()


def class_path(jars: Path) -> str:
    """All jars of a folder, in one order whatever the file system's."""
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
