"""The loop on several hosts, as network namespaces: a process is killed, and a host is cut off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.chaos.network import apart

_ROOT = Path(__file__).parents[2]
_WAIT_S = 900.0
_FAULTS = ("kill shard-0", "cut node-1 off")


def test_hosts_reach_each_other_unless_one_is_cut_off(tmp_path: Path) -> None:
    script = f"""
import socket, subprocess, sys, time
from pathlib import Path
from tools.chaos.network import Network

def reaches(address):
    try:
        socket.create_connection((address, 80), 2).close()
    except ConnectionRefusedError:  # its kernel answered
        return True
    except OSError:
        return False

network = Network(("first", "second"), Path({str(tmp_path)!r}))
address = network.addresses["second"]
said = [reaches(address)]
network.cut("second")
said.append(reaches(address))
network.mend("second")
until_s = time.monotonic() + 120
while not reaches(address) and time.monotonic() < until_s:
    pass
said.append(reaches(address))
network.close()
print(said)
"""
    command = apart([sys.executable, "-c", script])
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[True, False, True]"


def test_the_loop_on_hosts_outlives_a_killed_process_and_a_cut_cable() -> None:
    words = [word for fault in _FAULTS for word in ("--only", fault)]
    command = [sys.executable, "-m", "tools.chaos", "--hosts", "--minutes", "4", "--seed", "7", *words]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert {name for name in figures if name.startswith(("hosts_kill", "hosts_cut"))} == {
        "hosts_kill_shard-0_s", "hosts_cut_node-1_off_for_5_s_s",
    }  # fmt: skip
    assert figures["hosts_lost"] == figures["hosts_doubled"] == figures["hosts_violations"] == 0
    assert figures["hosts_whole_again_s"] <= 60
