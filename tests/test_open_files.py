"""Open files: as many as connections need, tried in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = """
import resource, sys
from streamlearn.open_files import allow_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
allow_connections(int(sys.argv[3]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "becomes", "is_warned"),
    [
        pytest.param(256, 4_096, 1_024, 2_048, False, id="the soft limit is raised"),
        pytest.param(3_000, 4_096, 1_024, 3_000, False, id="it is enough"),
        pytest.param(256, 1_500, 1_024, 1_500, True, id="the hard limit is too low"),
    ],
)
def test_a_process_may_open_what_its_connections_need(
    soft: int, hard: int, connections: int, becomes: int, is_warned: bool
) -> None:
    call = [sys.executable, "-c", _CODE, str(soft), str(hard), str(connections)]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=600, check=True)
    assert ended.stdout.split() == [str(becomes), str(hard)]
    assert ("ulimit -Hn" in ended.stderr) == is_warned
