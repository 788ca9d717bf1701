"""Environment: a virtual environment that was empty before a wheel was installed, and the commands that it has."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlearn.testing import wait_until

__all__ = ["Environment"]

_INSTALL_S_MAX, _COMMAND_S_MAX = 1_800.0, 300.0
# They would let commands see what is installed elsewhere.
_FOREIGN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "STREAMLEARN_STORE", "STREAMLEARN_REGISTRY"}


class Environment:
    """A virtual environment in a new folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        own = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        self._variables = {**own, "PATH": f"{self.bin}{os.pathsep}{own['PATH']}"}
        subprocess.run([sys.executable, "-m", "venv", folder], env=own, check=True)

    def pip(self, *words: str) -> None:
        """Run pip.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        call = [str(self.bin / "pip"), "--quiet", "--disable-pip-version-check", *words]
        subprocess.run(call, env=self._variables, check=True, timeout=_INSTALL_S_MAX)

    def run(self, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder until it ends."""
        return subprocess.run(
            words, cwd=place, env=self._variables, capture_output=True, text=True, check=False, timeout=_COMMAND_S_MAX,
            executable=self.bin / words[0],
        )  # fmt: skip

    @contextmanager
    def running(self, place: Path, pattern: str, *words: str) -> Iterator[str]:
        """Run a command in a folder for as long as the block, which gets the group of a pattern that it printed."""
        out = place / f"{words[1]}.out"
        with out.open("w") as file:
            process = subprocess.Popen(
                words, cwd=place, env=self._variables, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                executable=self.bin / words[0],
            )  # fmt: skip

        def is_said() -> bool:
            assert process.poll() is None, f"{' '.join(words)} ended: {out.read_text()}"
            return re.search(pattern, out.read_text()) is not None

        try:
            wait_until(is_said, f"{pattern!r} in {out}", _COMMAND_S_MAX)
            yield re.findall(pattern, out.read_text())[0]
            process.terminate()
            process.wait(_COMMAND_S_MAX)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
