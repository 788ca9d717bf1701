"""Settings of access: each changes who is reached, or how."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from streamlearn.gateway.envoy import Certificates, configured
from streamlearn.gateway.plan import Application, planned
from streamlearn.settings.access import Arm, Experiment, GatewaySettings
from tests.settings.probes import heeds

_SETTINGS = GatewaySettings(listen="127.0.0.1:18080")


def _files(**changes: object) -> dict[str, str]:
    plan = planned([Application("ctr", "ctr", structs.replace(_SETTINGS, **changes))], {})
    files = configured(plan, Path("/srv/access"), Certificates())
    return {name: content.decode() for name, content in files.items()}


@heeds("access.listen", "access.balance", "access.trust_headers", "access.experiments")
def test_access_is_as_it_is_set() -> None:
    assert "18081" in _files(listen="127.0.0.1:18081")["lds.json"]
    assert '"remove": "x-priority"' in _files()["lds.json"]
    assert '"remove": "x-priority"' not in _files(trust_headers=True)["lds.json"]
    assert "ring_hash" in _files(trust_headers=True, balance="user")["cds.json"]
    assert "ring_hash" not in _files(trust_headers=True)["cds.json"]
    arms = [Arm(name="a", app="ctr", share=0.25), Arm(name="b", app="ctr", share=0.75)]
    divided = _files(trust_headers=True, experiments=[Experiment(name="x", arms=arms)])
    assert "x:a" in divided["lds.json"]
    assert "eds/ctr.x.b.grpc.json" in divided
