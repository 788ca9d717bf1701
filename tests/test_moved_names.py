"""A server that moves to another address under its name: every client finds it when it connects again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import moved_names

_ROOT = Path(moved_names.__file__).parent.parent
_WAIT_S = 240.0


def test_every_client_resolves_the_name_again_when_it_reconnects(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("")
    # A hosts file of its own: in a mount namespace, which needs no root.
    words = f"mount --bind {hosts} /etc/hosts && exec {sys.executable} -m tests.moved_names"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", words]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    assert done.returncode == 0, f"a mount namespace with clients ended with {done.returncode}: {done.stderr[-2_000:]}"
    assert done.stdout.split() == [client.__name__ for client in moved_names.CLIENTS], done.stderr[-2_000:]
