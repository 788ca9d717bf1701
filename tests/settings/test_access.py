"""Settings of access: each changes who is reached, or how."""

from __future__ import annotations

from pathlib import Path

from streamlearn import config
from streamlearn.gateway.envoy import Certificates, configured
from streamlearn.gateway.plan import Application, planned
from streamlearn.settings import Settings
from tests.settings.probes import heeds

_OTHER = '{name = "b", app = "ctr", share = 0.75, version = 7}'
_ARMS = f'[{{name = "a", app = "ctr", share = 0.25, version = "active"}}, {_OTHER}]'


def _files(*changes: str) -> dict[str, str]:
    settings = config.read_settings(Settings, None, ["access.listen=127.0.0.1:18080", *changes])
    plan = planned([Application("ctr", "ctr", settings.access)], {})
    files = configured(plan, Path("/srv/access"), Certificates())
    return {name: content.decode() for name, content in files.items()}


@heeds("access.listen", "access.balance", "access.trust_headers", "access.experiments")
def test_access_is_as_it_is_set() -> None:
    trust = "access.trust_headers=true"
    assert "18081" in _files("access.listen=127.0.0.1:18081")["lds.json"]
    assert '"remove": "x-priority"' in _files()["lds.json"]
    assert '"remove": "x-priority"' not in _files(trust)["lds.json"]
    assert "ring_hash" in _files(trust, 'access.balance="user"')["cds.json"]
    assert "ring_hash" not in _files(trust)["cds.json"]
    divided = _files(trust, f'access.experiments=[{{name = "x", arms = {_ARMS}}}]')
    assert "x:a" in divided["lds.json"]
    assert "eds/ctr.x.b.grpc.json" in divided
