"""The Kubernetes objects of an application, as templates by file: of them come the Helm chart and `manifest`.

Pods have no rights on the API, no root, no writable root folder and no capabilities. Each reads only its own token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlearn.manifest.template import AppToml, Each, Hash, Part, Refuse, Splice, Sum, Test, Value, When, unless

__all__ = ["FILES"]

Object = dict[Any, Any]
_APP, _TOKENS, _TLS, _STORE = (
    "/srv/app",
    "/run/streamlearn/tokens",
    "/run/streamlearn/tls",
    "/var/lib/streamlearn/versions",
)
_GRPC, _HTTP, _CONSOLE, _SHARD, _METRICS = 8001, 8000, 8002, 7301, 9460
_USER = 10_001
_TLS_ROLES = ("nodes", "console")
_HAS_STORE = unless("settings.versions.store")
# A trainer that restores large tables is not ready for up to an hour (ps.restore_wait_s_max).
_SHARD_START_S, _START_S, _NODE_START_S = 120, 4_200, 300
# Endpoints are without a pod some seconds after it was told to end. A node answers until then.
_ENDPOINTS_S, _NODE_END_S = 5, 30
_TRAINER_END_S, _END_S = 300, 60


def _meta(role: str, suffix: str = "") -> Object:
    return {"name": f"@name@-{suffix or role}", "labels": _labels(role)}


def _labels(role: str) -> Object:
    return {
        "app.kubernetes.io/name": "streamlearn",
        "app.kubernetes.io/instance": "@name@",
        "app.kubernetes.io/component": role,
    }


def _object(version: str, kind: str, meta: Object, **fields: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def _own_volumes(role: str, tokens: Sequence[str]) -> list[Any]:
    """The volumes that not all pods have alike."""
    items = [{"key": token, "path": token} for token in (*tokens, "metrics")]
    secret = When(Test("tokens_secret"), Value("tokens_secret"), "@name@-tokens")
    state: Any = {"name": "state", "emptyDir": {}}
    tls = {"name": "tls", "secret": {"secretName": Value("tls_secret"), "defaultMode": 0o440}}
    return [
        When(unless("state_size"), state) if role == "trainer" else state,
        {"name": "tokens", "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}},
        *([When(Test("tls_secret"), tls)] if role in _TLS_ROLES else []),
    ]


_VOLUMES = Part(
    "volumes",
    [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", "emptyDir": {}},
        {"name": "app", "configMap": {"name": "@name@-app"}},
        When(_HAS_STORE, {"name": "store", "persistentVolumeClaim": {"claimName": "@name@-store"}}),
        Splice("volumes"),
    ],
)
# A process writes beside its application, into the volume `state`.
_MOUNTS = Part(
    "mounts",
    [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": "/var/cache/streamlearn"},
        {"name": "state", "mountPath": When(Test("application"), _APP, f"{_APP}/.streamlearn")},
        {"name": "app", "mountPath": f"{_APP}/app.toml", "subPath": "app.toml", "readOnly": True},
        Each("application", {"name": "app", "mountPath": f"{_APP}/@key@", "subPath": "@key@", "readOnly": True}),
        {"name": "tokens", "mountPath": _TOKENS, "readOnly": True},
        Splice("mounts"),
    ],
)
_CONTAINER = Part(
    "container",
    {
        "envFrom": When(Test("environment_secret"), [{"secretRef": {"name": Value("environment_secret")}}]),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    },
)
_ENVIRONMENT = Part(
    "environment",
    [
        {"name": "HOME", "value": "/tmp"},
        {"name": "STREAMLEARN_CACHE", "value": "/var/cache/streamlearn"},
        {"name": "STREAMLEARN_PULSE", "value": "/tmp/pulse"},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
)
_POD = Part(
    "pod",
    {
        "serviceAccountName": "@name@",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": When(Test("pull_secret"), [{"name": Value("pull_secret")}]),
        "securityContext": {
            "runAsNonRoot": True,
            **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), _USER),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    },
)


def _container(role: str, words: Sequence[Any], **more: Any) -> Object:
    index = {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
    store: Object = {"name": "store", "mountPath": _STORE}
    store |= {} if role in ("trainer", "shards", "console") else {"readOnly": True}
    tls = {"name": "tls", "mountPath": _TLS, "readOnly": True}
    return {
        "name": role,
        "image": Value(f"roles.{role}.image", "image"),
        _CONTAINER: None,
        "command": ["streamlearn"],
        "args": [*words],
        "env": [_ENVIRONMENT, *([{"name": "POD_INDEX", "valueFrom": {"fieldRef": index}}] if role == "shards" else [])],
        "resources": Value(f"roles.{role}.resources"),
        "volumeMounts": [
            _MOUNTS,
            When(_HAS_STORE, store),
            *([When(Test("tls_secret"), tls)] if role in _TLS_ROLES else []),
        ],
        **more,
    }


def _pod(role: str, *, end_s: Any, tokens: Sequence[str] = (), **more: Any) -> Object:
    """The specification of a pod; `end_s` is how long its processes may take to end."""
    return {
        _POD: None,
        "terminationGracePeriodSeconds": end_s,
        **more,
        "volumes": [_VOLUMES, *_own_volumes(role, tokens)],
        Splice(f"roles.{role}.pod"): None,
    }


def _template(role: str, pod: Object) -> Object:
    """The template of a workload's pods, which start again when their settings change."""
    settings = {"streamlearn/settings": Hash("configuration")}
    return {
        "selector": {"matchLabels": _labels(role)},
        "template": {"metadata": {"labels": _labels(role), "annotations": settings}, "spec": pod},
    }


def _role(role: str, words: Sequence[Any], *, end_s: Any, tokens: Sequence[str] = (), **more: Any) -> Object:
    """A workload's selector and the template of its pods, which have one container."""
    ports = [_port("metrics", _METRICS), *more.pop("ports", ())]
    container = _container(role, words, ports=ports, **more)
    return _template(role, _pod(role, end_s=end_s, tokens=tokens, containers=[container]))


def _port(name: str, number: int) -> Object:
    return {"name": name, "containerPort": number}


def _pulse(start_s: int, *, has_readiness: bool = False) -> Object:
    """The probes of a process without a port. Its heartbeats prove that it goes on."""

    def probe(*words: str, every_s: int, failures: int) -> Object:
        command = ["streamlearn", "probe", *words]
        return {
            "exec": {"command": command},
            "periodSeconds": every_s,
            "timeoutSeconds": 20,
            "failureThreshold": failures,
        }

    probes = {
        "startupProbe": probe("--started", every_s=10, failures=start_s // 10),
        "livenessProbe": probe("--within", "120", every_s=60, failures=2),
    }
    return probes | ({"readinessProbe": probe(every_s=20, failures=2)} if has_readiness else {})


def _asked(path: str, port: str, every_s: int, failures: int) -> Object:
    scheme = When(Test("tls_secret"), "HTTPS", "HTTP")
    ask = {"path": path, "port": port, "scheme": scheme}
    return {"httpGet": ask, "periodSeconds": every_s, "timeoutSeconds": 5, "failureThreshold": failures}


def _service(role: str, ports: dict[str, int], suffix: str = "", *, is_headless: bool = False) -> Object:
    spec: Object = {"selector": _labels(role)}
    if is_headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": role != "nodes"}
    spec["ports"] = [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()]
    return _object("v1", "Service", _meta(role, suffix), spec=spec)


def _policy(role: str, ports: Sequence[int], sources: Any) -> Object:
    """A NetworkPolicy: `sources` reach the ports, and all reach the metrics, which need their token."""
    let_in = [{"from": sources, "ports": [{"port": port} for port in ports]}, {"ports": [{"port": _METRICS}]}]
    spec = {"podSelector": {"matchLabels": _labels(role)}, "policyTypes": ["Ingress"], "ingress": let_in}
    return _object("networking.k8s.io/v1", "NetworkPolicy", _meta(role), spec=spec)


def _deployment(role: str, replicas: Any, spec: Object, strategy: Object) -> Object:
    counted = {"replicas": replicas, "strategy": strategy, **spec}
    return _object("apps/v1", "Deployment", _meta(role), spec=counted)


def _single(role: str, words: Sequence[Any], tokens: Sequence[str] = (), **more: Any) -> Object:
    """A Deployment of one pod; a second one beside it would take over from it."""
    end_s = more.pop("end_s", _END_S)
    return _deployment(role, 1, _role(role, words, end_s=end_s, tokens=tokens, **more), {"type": "Recreate"})


def _stateful(role: str, replicas: Any, spec: Object, **more: Any) -> Object:
    fields = {"serviceName": f"@name@-{role}", "replicas": replicas, "podManagementPolicy": "Parallel", **spec, **more}
    return _object("apps/v1", "StatefulSet", _meta(role), spec=fields)


def _claim(name: Object, size: str, access: Any, **more: Any) -> Object:
    spec = {"accessModes": [access], "resources": {"requests": {"storage": Value(size)}}, **more}
    return {"metadata": name, "spec": spec}


_CALLERS = When(Test("callers"), [Splice("callers"), {"podSelector": {"matchLabels": _labels("test")}}])
_TLS_WORDS = When(Test("tls_secret"), ["--tls-cert", f"{_TLS}/tls.crt", "--tls-key", f"{_TLS}/tls.key"])


def _token(name: str) -> list[str]:
    return ["--token-file", f"{_TOKENS}/{name}"]


_FLINK = (Test("ingest"), Test("settings.ingest.runner", equal="flink"))
_REFUSALS = [
    Refuse((unless("image"),), "the value image is needed: an image with the command streamlearn"),
    Refuse((unless("settings.topics.root", prefix="kafka://"),), "settings.topics.root must begin with kafka://"),
    Refuse((unless("settings.registry.url", prefix="redis"),), "settings.registry.url must begin with redis:// or rediss://"),
    Refuse(
        (Test("fold"), unless("settings.features.store", prefix="redis")),
        "settings.features.store must begin with redis:// or rediss://, because fold is on",
    ),
    Refuse((*_FLINK, unless("settings.ingest.job_endpoint")), "settings.ingest.job_endpoint is needed"),
    Refuse(
        (*_FLINK, Test("settings.ingest.environment", equal="LOOPBACK")),
        "settings.ingest.environment must not be LOOPBACK: Flink's task managers cannot reach ingest's own pod",
    ),
    *(
        Refuse((unless("tokens_secret"), unless(f"tokens.{name}")), f"tokens_secret is needed, or tokens.{name}")
        for name in ("nodes", "shards", "console", "metrics")
    ),
]  # fmt: skip
_FIXED = (
    (None, "front", "listen", f"0.0.0.0:{_GRPC}"),
    (None, "front", "http", f"0.0.0.0:{_HTTP}"),
    (None, "console", "listen", f"0.0.0.0:{_CONSOLE}"),
    (None, "telemetry", "listen", f"0.0.0.0:{_METRICS}"),
    (None, "telemetry", "token_file", f"{_TOKENS}/metrics"),
    (_HAS_STORE, "versions", "store", f"file://{_STORE}"),
)


def _configuration() -> list[Any]:
    settings = AppToml(_FIXED, f"@name@-shards-@index@.@name@-shards:{_SHARD}")
    config = _object("v1", "ConfigMap", _meta("app"), data={"app.toml": settings, Splice("application"): None})
    return [*_REFUSALS, config]


def _shared() -> list[Any]:
    account = {"name": "@name@", "labels": _labels("app"), "annotations": Value("account_annotations")}
    names = ("nodes", "shards", "console", "metrics")
    secret = _object("v1", "Secret", _meta("tokens"), stringData={name: Value(f"tokens.{name}") for name in names})
    claim = _claim(
        _meta("store"), "store_size", Value("store_access"),
        storageClassName=When(Test("store_class"), Value("store_class")),
    )  # fmt: skip
    return [
        _object("v1", "ServiceAccount", account, automountServiceAccountToken=False),
        When(unless("tokens_secret"), secret),
        When(_HAS_STORE, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim}),
    ]


def _shards() -> list[Any]:
    words = [
        "ps",
        "--app",
        _APP,
        "--shard",
        "$(POD_INDEX)/@shards@",
        "--listen",
        f"0.0.0.0:{_SHARD}",
        *_token("shards"),
    ]
    probes = _pulse(_SHARD_START_S, has_readiness=True)
    spec = _role("shards", words, end_s=_END_S, tokens=["shards"], ports=[_port("frames", _SHARD)], **probes)
    trainer = [{"podSelector": {"matchLabels": _labels("trainer")}}]
    return [
        When(Test("shards"), _stateful("shards", Value("shards"), spec)),
        When(Test("shards"), _service("shards", {"frames": _SHARD}, is_headless=True)),
        When((Test("shards"), Test("network_policy")), _policy("shards", [_SHARD], trainer)),
    ]


def _trainer() -> list[Any]:
    words = ["train", _APP, *_token("shards")]
    spec = _role("trainer", words, end_s=_TRAINER_END_S, tokens=["shards"], **_pulse(_START_S))
    claims = When(Test("state_size"), [_claim({"name": "state"}, "state_size", "ReadWriteOnce")])
    return [
        _stateful("trainer", 1, spec, volumeClaimTemplates=claims),
        _service("trainer", {"metrics": _METRICS}, is_headless=True),
    ]


def _nodes() -> list[Any]:
    words = ["serve", _APP, "--name", "$(POD_NAME)", *_token("nodes"), _TLS_WORDS]
    ports = {"grpc": _GRPC, "http": _HTTP}
    spec = _role(
        "nodes", words, end_s=Sum("settings.front.drain_s", _NODE_END_S), tokens=["nodes"],
        ports=[_port(name, number) for name, number in ports.items()],
        startupProbe=_asked("/v2/health/live", "http", 5, _NODE_START_S // 5),
        livenessProbe=_asked("/v2/health/live", "http", 20, 3),
        readinessProbe=_asked("/v2/health/ready", "http", 3, 1),
        lifecycle={"preStop": {"sleep": {"seconds": _ENDPOINTS_S}}},
    )  # fmt: skip
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    count = When(unless("nodes_max"), Value("nodes"))  # else the autoscaler's own number would be overwritten
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": _labels("nodes")}}
    busy = {
        "metric": {"name": "streamlearn_serving_lanes_busy_ratio"},
        "target": {"type": "AverageValue", "averageValue": Value("nodes_busy")},
    }
    scale = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "@name@-nodes"},
        "minReplicas": Value("nodes"), "maxReplicas": Value("nodes_max"),
        "metrics": [{"type": "Pods", "pods": busy}],
    }  # fmt: skip
    return [
        _deployment("nodes", count, spec, rolling),
        _service("nodes", ports),
        _service("nodes", ports, "nodes-each", is_headless=True),
        _object("policy/v1", "PodDisruptionBudget", _meta("nodes"), spec=budget),
        When(Test("nodes_max"), _object("autoscaling/v2", "HorizontalPodAutoscaler", _meta("nodes"), spec=scale)),
        When(Test("network_policy"), _policy("nodes", [_GRPC, _HTTP], _CALLERS)),
    ]


def _console() -> list[Any]:
    words = ["console", _APP, *_token("console"), _TLS_WORDS]
    ports, probe = [_port("page", _CONSOLE)], _asked("/", "page", 20, 3)
    console = _single("console", words, ["console"], ports=ports, livenessProbe=probe, readinessProbe=probe)
    return [
        When(Test("console"), console),
        When(Test("console"), _service("console", {"page": _CONSOLE})),
        When((Test("console"), Test("network_policy")), _policy("console", [_CONSOLE], _CALLERS)),
    ]


def _pipeline() -> list[Any]:
    ingest = _single("ingest", ["ingest", _APP], **_pulse(_START_S), end_s=_TRAINER_END_S)
    fold = _single("fold", ["features", "fold", _APP], **_pulse(_START_S))
    hook = {"helm.sh/hook": "post-install,post-upgrade", "helm.sh/hook-delete-policy": "before-hook-creation"}
    create = _container("ingest", ["topics", _APP, "--create", "@partitions@"])
    pod = _pod("ingest", end_s=_END_S, containers=[create], restartPolicy="OnFailure")
    meta = _meta("topics") | {"annotations": hook}
    job = _object(
        "batch/v1",
        "Job",
        meta,
        spec={"backoffLimit": 10, "template": {"metadata": {"labels": _labels("topics")}, "spec": pod}},
    )
    return [When(Test("ingest"), ingest), When(Test("fold"), fold), When(Test("partitions"), job)]


def _tests() -> list[Any]:
    """The pod of `helm test`: a node must be ready, and answer."""
    ready = "import urllib.request; urllib.request.urlopen('http://@name@-nodes:8000/v2/health/ready', timeout=10)"
    words = [
        "bench-serve",
        f"@name@-nodes:{_GRPC}",
        "--app",
        _APP,
        "--concurrency",
        "1",
        "--seconds",
        "1",
        *_token("nodes"),
    ]
    waits = _container("nodes", ["-c", ready], name="ready", command=["python"])
    pod = _pod(
        "nodes", end_s=_END_S, tokens=["nodes"], initContainers=[waits], containers=[_container("nodes", words)],
        restartPolicy="Never",
    )  # fmt: skip
    meta = _meta("test") | {
        "annotations": {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"}
    }
    return [When(unless("tls_secret"), _object("v1", "Pod", meta, spec=pod))]


FILES: dict[str, list[Any]] = {
    "configuration": _configuration(),
    "shared": _shared(),
    "shards": _shards(),
    "trainer": _trainer(),
    "nodes": _nodes(),
    "console": _console(),
    "pipeline": _pipeline(),
    "tests/answer": _tests(),
}
"""The templates of the objects, by the name of their file."""
