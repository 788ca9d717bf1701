"""Envoy's configuration: held by a golden file, and accepted by Envoy itself in every form."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import UsageError
from streamlearn.gateway.envoy import BOOTSTRAP, Certificates, configured
from streamlearn.gateway.plan import AccessPlan, Application, planned
from streamlearn.settings.access import GatewaySettings
from tests.gateway.test_plan import divided, node

_GOLDEN = Path(__file__).with_name("golden.json")
_FOLDER = Path("/srv/access")


def _plan(settings: GatewaySettings, **more: Any) -> AccessPlan:
    """Two models: one of two applications with all kinds of nodes, and one whose node has no HTTP."""
    apps = [
        Application("ctr", "ctr", settings),
        Application("ctr2", "ctr", GatewaySettings()),
        Application("cvr", "cvr", GatewaySettings()),
    ]
    nodes = {"ctr": [node(1, **more), node(2, "draining", **more)], "ctr2": [node(3, "aside", **more)]}
    return planned(apps, nodes | {"cvr": [node(4, http="", **more)]})


_PLANS = {
    "load": (_plan(GatewaySettings(listen="127.0.0.1:8080")), Certificates()),
    "experiment": (
        _plan(
            divided(
                ("old", "ctr", 0.9),
                ("new", "ctr2", 0.1),
                settings=GatewaySettings(listen="[::1]:8080", trust_headers=True, balance="user"),
            )
        ),
        Certificates(),
    ),
    "versions": (
        _plan(
            divided(
                ("old", "ctr", 0.5),
                ("now", "ctr", 0.4),
                ("new", "ctr", 0.1),
                name="trial",
                versions={"old": 7, "now": "active", "new": "canary"},
                settings=GatewaySettings(listen="127.0.0.1:8080", trust_headers=True),
            )
        ),
        Certificates(),
    ),
    "empty": (planned([Application("ctr", "ctr", GatewaySettings(listen="localhost:8080"))], {}), Certificates()),
}


def _decoded(plan: AccessPlan, folder: Path, tls: Certificates) -> dict[str, Any]:
    return {name: json.loads(content) for name, content in configured(plan, folder, tls).items()}


def _golden() -> dict[str, Any]:
    return {name: _decoded(plan, _FOLDER, tls) for name, (plan, tls) in _PLANS.items()}


def test_the_configuration_is_the_golden_one() -> None:
    """Write it anew with `python -m tests.gateway.test_envoy`, and read what has changed."""
    assert json.loads(_GOLDEN.read_text()) == _golden()


def _validate(envoy: Path, folder: Path, files: dict[str, Any]) -> None:
    """Have Envoy check everything: it does not look into files that it would watch, so it is given their content."""
    static = {key: value for key, value in files[BOOTSTRAP].items() if key != "dynamic_resources"}
    lists = {"listeners": "lds.json", "clusters": "cds.json"}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    plain = {kind: [{**one} for one in files[file]["resources"]] for kind, file in lists.items()}
    for resources in plain.values():
        for one in resources:
            del one["@type"]
    (folder / "static.json").write_text(json.dumps(static | {"static_resources": plain}))
    for file in ("static.json", BOOTSTRAP):
        words = [str(envoy), "--mode", "validate", "-c", str(folder / file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2_000:]


@pytest.mark.parametrize("name", _PLANS)
def test_envoy_accepts_it(name: str, envoy: Path, tmp_path: Path) -> None:
    plan, tls = _PLANS[name]
    # The socket of administrators has a short path, which validation does not open.
    files = _decoded(plan, Path("/tmp"), tls)
    text = json.dumps(files).replace('"/tmp/', f'"{tmp_path}/').replace(f"{tmp_path}/admin.sock", "/tmp/admin.sock")
    _validate(envoy, tmp_path, json.loads(text))


def test_envoy_accepts_tls_on_both_sides(envoy: Path, tmp_path: Path) -> None:
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    tls = Certificates(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    assert tls.certificate is not None
    assert tls.key is not None
    issued.cert_chain_pems[0].write_to_path(tls.certificate)
    issued.private_key_pem.write_to_path(tls.key)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    plan = _plan(GatewaySettings(listen="0.0.0.0:8443"), has_tls=True, has_token=True)
    files = _decoded(plan, Path("/tmp"), tls)
    assert len([one for one in files["cds.json"]["resources"] if "transport_socket" in one]) == 4
    text = json.dumps(files)
    for name in ("lds", "cds", "eds", "certificate.json", "authority.json"):
        text = text.replace(f'"/tmp/{name}', f'"{tmp_path}/{name}')
    _validate(envoy, tmp_path, json.loads(text))
    with pytest.raises(UsageError, match="no authority to verify them by") as error:
        configured(plan, Path("/tmp"), Certificates())
    assert "--ca FILE" in error.value.help


def test_a_folder_with_a_long_path_is_refused() -> None:
    with pytest.raises(UsageError, match="more than 100 characters") as error:
        configured(_PLANS["empty"][0], Path("/" + "x" * 100), Certificates())
    assert "--out" in error.value.help


if __name__ == "__main__":
    # A line for each resource.
    lines = (
        json.dumps(_golden(), indent=None)
        .replace('{"@type"', '\n{"@type"')
        .replace('\n{"@type": "type.googleapis.com/envoy.ext', '{"@type": "type.googleapis.com/envoy.ext')
    )
    _GOLDEN.write_text(lines + "\n")
