"""Envoy: its configuration for an access plan, as the content of files that it watches. It knows no registry."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from streamlearn.access.address import host_and_port
from streamlearn.errors import UsageError
from streamlearn.gateway.plan import AccessPlan, Backend, Endpoint, Share
from streamlearn.settings.front import FrontSettings

__all__ = ["ADMIN", "BOOTSTRAP", "Certificates", "configured", "weights_of"]

ADMIN, BOOTSTRAP = "admin.sock", "bootstrap.json"
_CERTIFICATE, _AUTHORITY = "certificate", "authority"
_SOCKET_CHARS_MAX = 100
_ROUTE_KEY, _ARM, _VERSION, _MODEL = "x-route-key", "x-arm", "x-version", "x-model"
# What the nodes of an application obey; callers may send it only where they are trusted.
_HEADERS = (_ROUTE_KEY, "x-priority", _ARM, _VERSION, "x-deadline-ms")
# The suffixes of the names of an application's three models.
_MODELS = ("", ".retrieve", ".recommend")
# Paths that lead to any node of the only model. Those for operators are reached at the nodes themselves.
_PATHS = (
    *({"path": path} for path in ("/score", "/retrieve", "/recommend", "/ready", "/health")),
    {"path_separated_prefix": "/v2"},
)
_WEIGHTS = 10_000
_TYPE = "type.googleapis.com/envoy."
_CONNECTIONS_MAX = 20_000
_MANY = 1_000_000  # nodes themselves bound requests and connections, and say when to come again
_Json = dict[str, Any]


class Certificates(NamedTuple):
    """Files for TLS: the certificate and key that callers see, and the authority that signed those of nodes."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None


def configured(plan: AccessPlan, folder: Path, tls: Certificates) -> dict[str, bytes]:
    """Return the content of all files by their path in `folder`, an absolute path.

    Raises:
        UsageError: Nodes take TLS but there is no authority, or the folder's path is too long.
    """
    socket = str(folder / ADMIN)
    if len(socket) > _SOCKET_CHARS_MAX:
        message = f"the path of the socket {socket} has more than {_SOCKET_CHARS_MAX} characters"
        raise UsageError(message, help="give a folder with a shorter path to --out")
    has_tls = [backend.name for backend in plan.backends if backend.has_tls]
    if has_tls and tls.authority is None:
        message = f"the nodes of {', '.join(has_tls)} take TLS, and no authority to verify them by is given"
        raise UsageError(message, help="give --ca FILE, the certificate of the authority that signed theirs")
    clusters = [_cluster(plan, backend, protocol, folder) for backend in plan.backends for protocol in ("grpc", "http")]
    return {
        **_secret_files(tls),  # they are written first: others name them
        BOOTSTRAP: _encoded(_bootstrap(folder, socket)),
        "lds.json": _resources([_listener(plan, folder, tls)]),
        "cds.json": _resources(clusters),
        **_endpoint_files(plan),
    }


def _endpoint_files(plan: AccessPlan) -> dict[str, bytes]:
    """Return the content of the files that name nodes."""
    files = {}
    for backend in plan.backends:
        for protocol in ("grpc", "http"):
            name = f"{backend.name}.{protocol}"
            lines = [one for endpoint in backend.endpoints for one in _endpoint(endpoint, protocol)]
            assignment = {
                "@type": f"{_TYPE}config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": name,
                "endpoints": [{"lb_endpoints": lines}],
            }
            files[f"eds/{name}.json"] = _resources([assignment])
    return files


def _secret_files(tls: Certificates) -> dict[str, bytes]:
    """Return the content of the files that name certificates: Envoy reads one again when it is moved into its place."""
    secrets: _Json = {}
    if tls.certificate is not None:
        files = {"certificate_chain": _file(tls.certificate), "private_key": _file(tls.key)}
        secrets[_CERTIFICATE] = {"tls_certificate": files}
    if tls.authority is not None:
        secrets[_AUTHORITY] = {"validation_context": {"trusted_ca": _file(tls.authority)}}
    message = f"{_TYPE}extensions.transport_sockets.tls.v3.Secret"
    return {
        f"{name}.json": _resources([{"@type": message, "name": name, **secret}]) for name, secret in secrets.items()
    }


def _secret(name: str, folder: Path) -> _Json:
    return {"name": name, "sds_config": _watched(folder / f"{name}.json")}


def _endpoint(endpoint: Endpoint, protocol: str) -> list[_Json]:
    address = endpoint.grpc if protocol == "grpc" else endpoint.http
    if not address:
        return []
    check: _Json = {}
    if endpoint.is_aside:
        # It tells all callers that it is not ready, though it answers those of an experiment.
        check = {"health_check_config": {"disable_active_health_check": True}}
    elif protocol == "grpc" and endpoint.http:
        check = {"health_check_config": {"address": _address(endpoint.http)}}
    status = {"health_status": "DRAINING"} if endpoint.is_draining else {}
    return [{"endpoint": {"address": _address(address), **check}, **status}]


def _bootstrap(folder: Path, socket: str) -> _Json:
    return {
        "node": {"id": "streamlearn-access", "cluster": "streamlearn-access"},
        "admin": {"address": {"pipe": {"path": socket, "mode": 0o600}}},
        "overload_manager": {"resource_monitors": [_monitor("global_downstream_max_connections", _CONNECTIONS_MAX)]},
        "dynamic_resources": {"lds_config": _watched(folder / "lds.json"), "cds_config": _watched(folder / "cds.json")},
    }


def _monitor(name: str, most: int) -> _Json:
    message = "downstream_connections.v3.DownstreamConnectionsConfig"
    limit = {"@type": f"{_TYPE}extensions.resource_monitors.{message}", "max_active_downstream_connections": most}
    return {"name": f"envoy.resource_monitors.{name}", "typed_config": limit}


def _watched(path: Path) -> _Json:
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}


def _cluster(plan: AccessPlan, backend: Backend, protocol: str, folder: Path) -> _Json:
    name, settings = f"{backend.name}.{protocol}", plan.settings
    http = {"http2_protocol_options": _HTTP2} if protocol == "grpc" else {"http_protocol_options": {}}
    by_http = protocol == "http" or all(endpoint.http for endpoint in backend.endpoints)
    return {
        "@type": f"{_TYPE}config.cluster.v3.Cluster",
        "name": name,
        "alt_stat_name": name.replace(".", "_"),  # its metrics take the name up to the first dot
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _watched(folder / "eds" / f"{name}.json")},
        "connect_timeout": "1s",
        **_CONNECTIONS,
        "typed_extension_protocol_options": {
            f"{_TYPE[20:]}extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": http,
                "outlier_detection": {"error_matcher": _FAILURES},
            }
        },
        **_balanced(settings.balance, settings.balance_percent),
        # Without it, requests went to nodes that are not ready when few others are.
        # By default Envoy's threads learn only once a second which nodes are back or gone.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "health_checks": [_health_check(by_http=by_http)],
        "outlier_detection": _ejection(settings.ejection_percent_max),
        "circuit_breakers": {
            "thresholds": [
                {
                    **dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), _MANY),
                    "retry_budget": {
                        "budget_percent": {"value": settings.retry_percent},
                        "min_retry_concurrency": 20,
                    },
                }
            ]
        },
        **({"transport_socket": _to_nodes(folder)} if backend.has_tls else {}),
    }


# A connection whose other end is gone without a word is noticed within seconds: what it had is tried elsewhere. On
# Linux, TCP_USER_TIMEOUT (18 of level 6) ends those with data that no kernel acknowledges, and probes those without.
_GONE_S = 3
_CONNECTIONS = {
    "upstream_bind_config": {"socket_options": [{"level": 6, "name": 18, "int_value": _GONE_S * 1_000}]},
    "upstream_connection_options": {
        "tcp_keepalive": {"keepalive_time": _GONE_S, "keepalive_interval": 1, "keepalive_probes": _GONE_S}
    },
}
_HTTP2 = {"connection_keepalive": {"interval": "5s", "timeout": "2s"}}


def _balanced(balance: str, percent: int) -> _Json:
    if balance == "user":
        ring = {"consistent_hashing_lb_config": {"hash_balance_factor": percent}}
        policy = _extension("load_balancing_policies.ring_hash", "RingHash", **ring)
    else:
        policy = _extension(
            "load_balancing_policies.client_side_weighted_round_robin", "ClientSideWeightedRoundRobin",
            blackout_period="2s", weight_expiration_period="60s", weight_update_period="0.5s",
        )  # fmt: skip
    return {"load_balancing_policy": {"policies": [{"typed_extension_config": policy}]}}


def _health_check(*, by_http: bool) -> _Json:
    # Nodes that only this machine reaches refuse other names, because a page in a browser may use them.
    by_path = {"http_health_check": {"path": "/ready", "host": "localhost"}}
    how: _Json = by_path if by_http else {"grpc_health_check": {}}
    return {
        **how,
        # After a switch another process answers at the address, but only on connections that are new.
        "reuse_connection": False,
        "timeout": "1s",
        "interval": "1s",
        "no_traffic_interval": "1s",
        "unhealthy_interval": "1s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "always_log_health_check_failures": False,
    }


# Answers that are a node's fault: not those that were refused for lack of time, or came too late for their caller.
_FAILURES = {
    "or_match": {
        "rules": [
            {
                "http_response_headers_match": {
                    "headers": [{"name": name, "string_match": {"safe_regex": {"regex": one}}}]
                }
            }
            for name, one in ((":status", "500|502|503"), ("grpc-status", "2|13|14"))
        ]
    }
}


def _ejection(percent_max: int) -> _Json:
    """When nodes are left out for their answers.

    A bad request may break its execution, so failures of answers eject late; failures to answer at all eject at once.
    """
    return {
        "split_external_local_origin_errors": True,
        "consecutive_5xx": 20,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "interval": "1s",
        "base_ejection_time": "5s",
        "max_ejection_time": "60s",
        "max_ejection_percent": percent_max,
    }


def _listener(plan: AccessPlan, folder: Path, tls: Certificates) -> _Json:
    chain: _Json = {"filters": [_http(plan)]}
    if tls.certificate is not None:
        secrets = [_secret(_CERTIFICATE, folder)]
        context = {"tls_certificate_sds_secret_configs": secrets, "alpn_protocols": ["h2", "http/1.1"]}
        chain["transport_socket"] = _extension(
            "transport_sockets.tls", "DownstreamTlsContext", common_tls_context=context
        )  # fmt: skip
    return {
        "@type": f"{_TYPE}config.listener.v3.Listener",
        "name": "access",
        "address": _address(plan.settings.listen),
        "filter_chains": [chain],
    }


def _http(plan: AccessPlan) -> _Json:
    removed = [] if plan.settings.trust_headers else [*_HEADERS]
    # They go before a route is chosen, and so decide nothing.
    mutation = {"mutations": [{"remove": name} for name in removed]}
    early = [_extension("http.early_header_mutation.header_mutation", "HeaderMutation", **mutation)] if removed else []
    hosts = [{"name": "models", "domains": ["*"], "routes": _routes(plan)}]
    return _extension(
        "filters.network.http_connection_manager", "HttpConnectionManager",
        stat_prefix="access",
        route_config={"name": "access", "virtual_hosts": hosts},
        early_header_mutation_extensions=early,
        http_filters=[_extension("filters.http.router", "Router", suppress_envoy_headers=True)],
        use_remote_address=True,
        # Callers of private networks are outsiders as well, whose x-envoy-* headers count for nothing.
        internal_address_config={"cidr_ranges": []},
        generate_request_id=False,
        server_header_transformation="PASS_THROUGH",
        normalize_path=True,
        request_headers_timeout="10s",
    )  # fmt: skip


_OTHER_HOST = {
    "name": "envoy.retry_host_predicates.previous_hosts",
    "typed_config": {"@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
}


def _routes(plan: AccessPlan) -> list[_Json]:
    """By the model's name, in the path or in `x-model`: Envoy does not read messages of gRPC, where it is a field.

    The nodes of a model also find items, as MODEL.retrieve, and rank those, as MODEL.recommend.
    """
    routes: list[_Json] = []
    for model, shares in plan.shares.items():
        names = "|".join(re.escape(f"{model}{more}") for more in _MODELS)
        either = {"safe_regex": {"regex": names}}
        named = {"headers": [{"name": _MODEL, "string_match": either}]}
        routes += [
            *(_route({"path_separated_prefix": f"/v2/models/{model}{of}"}, shares, "http") for of in _MODELS),
            _route({"prefix": "/", "grpc": {}, **named}, shares, "grpc"),
            *(_route({**path, **named}, shares, "http") for path in _PATHS),
        ]
    if len(plan.shares) == 1:
        (shares,) = plan.shares.values()
        routes += [
            _route({"prefix": "/", "grpc": {}}, shares, "grpc"),
            *(_route(path, shares, "http") for path in _PATHS),
        ]
    text = f"unknown model or path; help: name the model in the header {_MODEL}: {', '.join(plan.shares)}"
    body = json.dumps({"error": text})
    return [*routes, {"match": {"prefix": "/"}, "direct_response": {"status": 404, "body": {"inline_string": body}}}]


def _route(match: _Json, shares: tuple[Share, ...], protocol: str) -> _Json:
    longest_s = FrontSettings().deadline_ms_max // 1_000 + 1
    action: _Json = {
        # Nodes keep the deadlines of callers. Were Envoy to keep them, late answers would count as nodes that hang.
        "timeout": f"{longest_s}s",
        "hash_policy": [{"header": {"header_name": _ROUTE_KEY}}],
        "retry_policy": {
            # None of them was scored: a node that is starting, closing or gone. Refusals for lack of time stay.
            "retry_on": "connect-failure,refused-stream,reset,unavailable,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": 1,
            "retry_host_predicate": [_OTHER_HOST],
            # By load, a lost node may be drawn hundreds of times before one that was slow.
            "host_selection_retry_max_attempts": 10_000,
        },
    }
    if len(shares) == 1 and not shares[0].arm:
        return {"match": match, "route": action | {"cluster": f"{shares[0].backend}.{protocol}"}}
    clusters = [
        {
            "name": f"{share.backend}.{protocol}",
            "weight": weight,
            "request_headers_to_add": [
                {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
                for name, value in ((_ARM, share.arm), (_VERSION, share.version))
                if value
            ],
            **({} if share.version else {"request_headers_to_remove": [_VERSION]}),
        }
        for share, weight in zip(shares, weights_of([share.share for share in shares]), strict=True)
    ]
    # Users are hashed with the experiment's name, or those with a new arm of one would have the new arm of each.
    salted = {"pattern": {"regex": "^(.*)$"}, "substitution": f"{shares[0].arm.partition(':')[0]}:\\1"}
    action["hash_policy"] = [{"header": {"header_name": _ROUTE_KEY, "regex_rewrite": salted}}]
    return {"match": match, "route": action | {"weighted_clusters": {"clusters": clusters, "use_hash_policy": True}}}


def weights_of(shares: list[float]) -> list[int]:
    """Return whole numbers that sum to `_WEIGHTS`.

    Examples:
        >>> weights_of([1 / 3, 1 / 3, 1 / 3])
        [3333, 3334, 3333]
    """
    ends = [round(_WEIGHTS * sum(shares[: number + 1])) for number in range(len(shares))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _to_nodes(folder: Path) -> _Json:
    context = {"validation_context_sds_secret_config": _secret(_AUTHORITY, folder)}
    return _extension("transport_sockets.tls", "UpstreamTlsContext", common_tls_context=context)


def _extension(package: str, message: str, **fields: Any) -> _Json:
    """Return an extension of Envoy, whose package is named without its version."""
    return {
        "name": f"envoy.{package}",
        "typed_config": {"@type": f"{_TYPE}extensions.{package}.v3.{message}", **fields},
    }


def _address(address: str) -> _Json:
    host, port = host_and_port("address", address)
    return {"socket_address": {"address": "127.0.0.1" if host == "localhost" else host, "port_value": port}}


def _file(path: Path | None) -> Mapping[str, str]:
    assert path is not None
    return {"filename": str(path.absolute())}


def _resources(resources: list[_Json]) -> bytes:
    return _encoded({"resources": resources})


def _encoded(content: _Json) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"
