"""The control plane of Kubernetes on loopback: etcd, an API server and its controllers. Pods never start."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.kubernetes import ETCD_VERSION, KUBERNETES_VERSION, control_plane
from tools.services.ports import LOOPBACK, free_ports
from tools.services.service import Service, launch_on

__all__ = ["Cluster", "cluster"]

_PROBE_WAIT_S_MAX, _ASK_WAIT_S_MAX = 2.0, 60.0
_PLURALS = {"NetworkPolicy": "networkpolicies", "RuntimeClass": "runtimeclasses"}
_TOKEN = "administrator-of-this-test"


@dataclass(frozen=True)
class Cluster:
    """A running control plane.

    Attributes:
        configuration: The file that gives clients its address and all rights (KUBECONFIG).
        address: HOST:PORT of the API server.
    """

    configuration: Path
    address: str

    def apply(self, document: Mapping[str, Any], space: str = "") -> str:
        """Apply an object server-side, as strictly as there is; return why it was refused, or nothing."""
        plural = _PLURALS.get(document["kind"], f"{document['kind'].lower()}s")
        path = f"{_path(document['apiVersion'], space)}/{plural}/{document['metadata']['name']}"
        return self._ask("PATCH", f"{path}?fieldManager=test&fieldValidation=Strict&force=true", document)[0]

    def names(self, version: str, plural: str, space: str) -> list[str]:
        """Return the names of objects."""
        refusal, found = self._ask("GET", f"{_path(version, space)}/{plural}")
        if refusal:
            message = f"the API server does not list {plural}: {refusal}"
            raise ServiceError(message, help="see kube-apiserver.log")
        return [item["metadata"]["name"] for item in found["items"]]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[str, Any]:
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": "application/apply-patch+yaml"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"https://{self.address}{path}", data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.configuration.parent / "ca.pem"))
        try:
            with urllib.request.urlopen(request, timeout=_ASK_WAIT_S_MAX, context=context) as answer:
                return "", json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return str(json.load(error)["message"]), None


def _path(version: str, space: str) -> str:
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{space}" if space else root


class _Program(Service):
    """A program of the control plane, with its flags and the URL that says whether it works."""

    ready_wait_s_max = 180.0

    def __init__(self, folder: Path, ports: Sequence[int], program: Path, flags: dict[str, str], health: str) -> None:
        super().__init__(folder, ports)
        self.name = program.name  # type: ignore[misc]
        self._program, self._flags, self._health = program, flags, health

    @property
    def version(self) -> str:
        return ETCD_VERSION if self.name == "etcd" else KUBERNETES_VERSION

    def _prepare(self) -> Sequence[str]:
        return [str(self._program), *(f"--{name}={value}" for name, value in self._flags.items())]

    def _answers(self, pid: int) -> bool:
        del pid  # of none it is told
        request = urllib.request.Request(self._health, headers={"Authorization": f"Bearer {_TOKEN}"})
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, timeout=_PROBE_WAIT_S_MAX, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def cluster(folder: Path, cache: Cache | None = None) -> Iterator[Cluster]:
    """Start a control plane, and stop it at the end.

    Raises:
        ServiceError: A program cannot be built, or does not start.
    """
    programs = control_plane(cache or Cache())
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "kubeconfig.json"

    def etcd(ports: Sequence[int]) -> _Program:
        clients, peers = (f"http://{LOOPBACK}:{port}" for port in ports)
        flags = {
            "data-dir": str(folder / "data"), "unsafe-no-fsync": "true",
            "listen-client-urls": clients, "advertise-client-urls": clients,
            "listen-peer-urls": peers, "initial-advertise-peer-urls": peers, "initial-cluster": f"default={peers}",
        }  # fmt: skip
        return _Program(folder, ports, programs / "etcd", flags, f"{clients}/health")

    def server(ports: Sequence[int]) -> _Program:
        flags = _server_flags(folder, ports[0], f"http://{store.address}")
        return _Program(folder, ports, programs / "kube-apiserver", flags, f"https://{LOOPBACK}:{ports[0]}/readyz")

    def controllers(ports: Sequence[int]) -> _Program:
        files = dict.fromkeys(
            ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), str(configuration)
        )
        flags = {
            **files, "bind-address": LOOPBACK, "secure-port": str(ports[0]), "cert-dir": str(folder / "controllers"),
            "leader-elect": "false",
        }  # fmt: skip
        health = f"https://{LOOPBACK}:{ports[0]}/healthz"
        return _Program(folder, ports, programs / "kube-controller-manager", flags, health)

    with launch_on(free_ports, 2, etcd) as store, launch_on(free_ports, 1, server) as api:
        configuration.write_text(_configuration(api.address, (folder / "ca.pem").read_text()))
        with launch_on(free_ports, 1, controllers):
            yield Cluster(configuration, api.address)


def _server_flags(folder: Path, port: int, etcd: str) -> dict[str, str]:
    """Write the files of an API server, and return its flags."""
    authority = trustme.CA()
    certificate = authority.issue_cert(LOOPBACK)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    (folder / "tokens.csv").write_text(f'{_TOKEN},administrator,1,"system:masters"\n')
    key = str(folder / "server.key")  # accounts' tokens need some key
    return {
        "etcd-servers": etcd,
        "bind-address": LOOPBACK, "secure-port": str(port), "endpoint-reconciler-type": "none",
        "tls-cert-file": str(folder / "server.pem"), "tls-private-key-file": key,
        "token-auth-file": str(folder / "tokens.csv"), "authorization-mode": "RBAC",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-signing-key-file": key, "service-account-key-file": key,
        "service-cluster-ip-range": "10.96.0.0/16",
    }  # fmt: skip


def _configuration(address: str, authority: str) -> str:
    there = {"server": f"https://{address}", "certificate-authority-data": b64encode(authority.encode()).decode()}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": there}],
            "users": [{"name": "test", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
    )
