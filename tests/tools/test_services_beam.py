"""Prism and the Flink job server: the binary runs, and the server comes up, answers and stops."""

from __future__ import annotations

import subprocess
from pathlib import Path

import apache_beam
import grpc
import pytest

from streamlearn.errors import ServiceError
from tools.services import Cache, FlinkJobServer, prism_path
from tools.services.ports import LOOPBACK, is_taken
from tools.services.prism import PRISM_VERSION, with_loopback, without_spin

__all__: list[str] = []


def test_prism_is_of_the_version_of_the_installed_beam_and_runs(prism: Path) -> None:
    assert apache_beam.__version__ == PRISM_VERSION
    answer = subprocess.run([prism, "--help"], capture_output=True, text=True, timeout=600, check=False)
    assert "job_port" in answer.stdout + answer.stderr


def test_prism_is_not_built_where_its_source_listens_in_an_unknown_way() -> None:
    listen = 'lis, err := net.Listen("tcp", fmt.Sprintf(":%d", port))'
    assert with_loopback(listen) == 'lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))'
    for source in ("", listen.replace(":%d", "[::]:%d"), f"{listen}\n{listen}", f'{listen}\nnet.Listen("udp", "")'):
        with pytest.raises(ServiceError, match="does not listen as expected"):
            with_loopback(source)


def test_prism_is_not_built_where_its_source_waits_in_an_unknown_way() -> None:
    waits = "\t\tcase <-dataReady:\n\t\t\tdataFinished = true\n"
    assert without_spin(waits) == "\t\tcase <-dataReady:\n\t\t\tdataReady = nil\n\t\t\tdataFinished = true\n"
    for source in ("", waits + waits):
        with pytest.raises(ServiceError, match="does not wait as expected"):
            without_spin(source)


def test_where_prism_can_be_neither_built_nor_downloaded_go_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # no binary that Beam fetched earlier
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(ServiceError, match="there is no go on PATH") as caught:
        prism_path(Cache(tmp_path / "cache"))
    assert "install Go" in caught.value.help


def test_the_flink_job_server_lists_its_jobs_and_all_its_ports_are_open(flink: FlinkJobServer) -> None:
    for endpoint in (flink.job_endpoint, flink.artifact_endpoint, flink.expansion_endpoint):
        host, port = endpoint.split(":")
        assert host == LOOPBACK
        assert is_taken(int(port))
    with grpc.insecure_channel(flink.job_endpoint) as channel:
        call = channel.unary_unary("/org.apache.beam.model.job_management.v1.JobService/GetJobs")
        call(b"", timeout=120)  # raises where it does not answer; what it lists are the jobs of other tests


def test_a_flink_job_server_stopped_and_started_again_has_its_ports(flink: FlinkJobServer) -> None:
    address, pid = flink.address, flink.pid
    flink.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert not any(is_taken(port) for port in flink.ports)
    flink.launch()
    assert flink.address == address
