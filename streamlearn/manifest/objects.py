"""The Kubernetes objects of an application, as templates by file: of them come the Helm chart and `manifest`.

Pods have no rights on the API, no root, no writable root folder and no capabilities. Each reads only its own token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlearn.manifest.template import AppToml, Each, Hash, Part, Refuse, Splice, Sum, Test, Value, When, unless

__all__ = ["FILES"]

Object = dict[Any, Any]
_APP, _STORE = "/srv/app", "/var/lib/streamlearn/versions"
_TOKENS, _TLS = "/run/streamlearn/tokens", "/run/streamlearn/tls"
_CA = ["--ca", f"{_TLS}/ca.crt"]
_PORTS = {"grpc": 8001, "http": 8000, "page": 8002, "access": 8080, "frames": 7301, "workers": 7302, "metrics": 9460}
_RECREATE = {"type": "Recreate"}  # a second process beside the first would take over from it
_USER = 10_001
# The token that processes of a role read, beside that of metrics.
_TOKEN_OF = {
    "shards": ["shards"], "trainer": ["shards"], "workers": ["shards"], "nodes": ["nodes"], "console": ["console"],
    "nearline": ["nodes"],
}  # fmt: skip
_ROLES = ("shards", "trainer", "workers", "nodes", "console", "access", "fold", "nearline", "ingest")
_TLS_ROLES, _WRITERS = ("nodes", "console", "access"), ("shards", "trainer", "console")
_ASKERS = ("access", "nodes", "nearline")  # they ask nodes, so they need the authority of their certificates
_NAME_MAX = 44  # a label of a StatefulSet's pods has its name and 11 more characters, 63 at most
_HAS_STORE = unless("settings.versions.store")
# A trainer that restores large tables is not ready for up to an hour (ps.restore_wait_s_max).
_SHARD_START_S, _START_S, _NODE_START_S, _WORKER_START_S = 120, 4_200, 300, 600
# A node goes on for front.drain_s, waits as long for requests, and once more for lanes; the rest is for impressions.
_DRAINS, _NODE_END_S = 3, 30
_LAST_VERSION_S, _END_S = 300, 60


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


def _pods_of(role: str) -> Object:
    return {"podSelector": {"matchLabels": _labels(role)}}


def _mount(name: str, path: Any, *, is_writable: bool = False, **more: Any) -> Object:
    return {"name": name, "mountPath": path, **more, **({} if is_writable else {"readOnly": True})}


def _own_volumes(role: str, *, has_key: bool) -> list[Any]:
    """The volumes that not all pods have alike. Workers get rows and weights from shards and the trainer alone."""
    store = {"name": "store", "persistentVolumeClaim": {"claimName": "@name@-store"}}
    items = [{"key": token, "path": token} for token in (*_TOKEN_OF.get(role, ()), "metrics")]
    secret = When(Test("tokens_secret"), Value("tokens_secret"), "@name@-tokens")
    state: Any = {"name": "state", "emptyDir": {}}
    files = {} if has_key else {"items": [{"key": "ca.crt", "path": "ca.crt"}]}
    tls = {"name": "tls", "secret": {"secretName": Value("tls_secret"), **files, "defaultMode": 0o440}}
    cache: Object = {"emptyDir": {}}
    if role == "nodes":
        claim = {"claimName": Value("nodes_cache")}
        cache = {"emptyDir": When(unless("nodes_cache"), {}), "persistentVolumeClaim": When(Test("nodes_cache"), claim)}
    return [
        {"name": "cache", **cache},
        *([] if role == "workers" else [When(_HAS_STORE, store)]),
        When(unless("state_size"), state) if role == "trainer" else state,
        {"name": "tokens", "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}},
        *([When(Test("tls_secret"), tls)] if role in (*_TLS_ROLES, *_ASKERS) else []),
    ]


_VOLUMES = Part(
    "volumes",
    [
        {"name": "tmp", "emptyDir": {}},
        {"name": "app", "configMap": {"name": "@name@-app"}},
        Splice("volumes"),
    ],
)
# A process writes beside its application, into the volume `state`.
_MOUNTS = Part(
    "mounts",
    [
        _mount("tmp", "/tmp", is_writable=True),
        _mount("cache", "/var/cache/streamlearn", is_writable=True),
        _mount("state", When(Test("application"), _APP, f"{_APP}/.streamlearn"), is_writable=True),
        _mount("app", f"{_APP}/app.toml", subPath="app.toml"),
        Each("application", _mount("app", f"{_APP}/@key@", subPath="@key@")),
        _mount("tokens", _TOKENS),
        Splice("mounts"),
    ],
)
_CONTAINER = Part(
    "container",
    {
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


def _environment_of(role: str) -> When:
    """The Secret of a role, else that of all."""
    shared = When(Test("environment_secret"), [{"secretRef": {"name": Value("environment_secret")}}])
    own = f"roles.{role}.environment_secret"
    return When(Test(own), [{"secretRef": {"name": Value(own)}}], shared)


def _container(role: str, command: str, **more: Any) -> Object:
    """A container that runs `streamlearn`; with the file of its token, and of its certificate, if its role has one."""
    index = {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
    token = [word for name in _TOKEN_OF.get(role, ()) for word in ("--token-file", f"{_TOKENS}/{name}")]
    mounts: list[Any] = [_MOUNTS]
    if role != "workers":
        mounts.append(When(_HAS_STORE, _mount("store", _STORE, is_writable=role in _WRITERS)))
    tls = [When(Test("tls_secret"), _mount("tls", _TLS))] if role in (*_TLS_ROLES, *_ASKERS) else []
    return {
        "name": role,
        "image": Value(f"roles.{role}.image", "image"),
        "envFrom": _environment_of(role),
        _CONTAINER: None,
        "command": ["streamlearn"],
        "args": [*command.split(), *token],
        "env": [_ENVIRONMENT, *([{"name": "POD_INDEX", "valueFrom": {"fieldRef": index}}] if role == "shards" else [])],
        "resources": Value(f"roles.{role}.resources"),
        "volumeMounts": [*mounts, *tls],
        **more,
    }


def _pod(role: str, *, end_s: Any, has_key: bool, **more: Any) -> Object:
    """The specification of a pod; `end_s` is how long its processes may take to end.

    `has_key` says whether they serve TLS, and not only ask servers that do.
    """
    return {
        _POD: None,
        "serviceAccountName": When(Test(f"roles.{role}.account_annotations"), f"@name@-{role}", "@name@"),
        "terminationGracePeriodSeconds": end_s,
        **more,
        "volumes": [_VOLUMES, *_own_volumes(role, has_key=has_key)],
        Splice(f"roles.{role}.pod"): None,
    }


def _role(role: str, command: str, *, end_s: Any, ports: Sequence[str] = (), **more: Any) -> Object:
    """A workload's selector and the template of its pods, which start again when their settings change."""
    all_ports = [{"name": name, "containerPort": _PORTS[name]} for name in ("metrics", *ports)]
    container = _container(role, command, ports=all_ports, **more)
    files = f"--tls-cert {_TLS}/tls.crt --tls-key {_TLS}/tls.key".split() if role in _TLS_ROLES else []
    files += _CA if role in _ASKERS else []
    if files:
        container["args"].append(When(Test("tls_secret"), files))
    meta = {"labels": _labels(role), "annotations": {"streamlearn/settings": Hash("configuration")}}
    pod = _pod(role, end_s=end_s, has_key=role in _TLS_ROLES, containers=[container])
    return {"selector": {"matchLabels": _labels(role)}, "template": {"metadata": meta, "spec": pod}}


def _pulse(start_s: int, *, has_readiness: bool = False) -> Object:
    """The probes of a process without a port. Its heartbeats prove that it goes on."""

    def probe(options: str, every_s: int, failures: int) -> Object:
        run = {"exec": {"command": f"streamlearn probe {options}".split()}}
        return {**run, "periodSeconds": every_s, "timeoutSeconds": 20, "failureThreshold": failures}

    probes = {"startupProbe": probe("--started", 10, start_s // 10), "livenessProbe": probe("--within 120", 60, 2)}
    return probes | ({"readinessProbe": probe("", 20, 2)} if has_readiness else {})


def _asked(path: str, port: str, every_s: int, failures: int) -> Object:
    scheme = When(Test("tls_secret"), "HTTPS", "HTTP")
    ask = {"path": path, "port": port, "scheme": scheme}
    return {"httpGet": ask, "periodSeconds": every_s, "timeoutSeconds": 5, "failureThreshold": failures}


def _service(role: str, ports: Sequence[str], suffix: str = "", *, is_headless: bool = False) -> Object:
    headless = {"clusterIP": "None", "publishNotReadyAddresses": role != "nodes"} if is_headless else {}
    named = [{"name": name, "port": _PORTS[name], "targetPort": name} for name in ports]
    return _object("v1", "Service", _meta(role, suffix), spec={"selector": _labels(role), **headless, "ports": named})


def _policy(role: str, ports: Sequence[str] = (), sources: Any = None, *, only: Test | None = None) -> Object:
    """A NetworkPolicy: `sources` reach the ports, and all reach the metrics, which need their token."""
    let_in: list[Any] = [{"ports": [{"port": _PORTS["metrics"]}]}]
    if ports:  # a rule without ports would be one for all of them
        rule = {"from": sources, "ports": [{"port": _PORTS[name]} for name in ports]}
        let_in.insert(0, When(only, rule) if only else rule)
    spec = {"podSelector": {"matchLabels": _labels(role)}, "policyTypes": ["Ingress"], "ingress": let_in}
    return _object("networking.k8s.io/v1", "NetworkPolicy", _meta(role), spec=spec)


def _deployment(role: str, command: str, replicas: Any = 1, strategy: Object = _RECREATE, **more: Any) -> Object:
    spec = {"replicas": replicas, "strategy": strategy, **_role(role, command, **more)}
    return _object("apps/v1", "Deployment", _meta(role), spec=spec)


def _stateful(role: str, command: str, replicas: Any, claims: Any = None, **more: Any) -> Object:
    spec: Object = {"serviceName": f"@name@-{role}", "replicas": replicas, "podManagementPolicy": "Parallel"}
    spec |= _role(role, command, **more) | ({"volumeClaimTemplates": claims} if claims else {})
    return _object("apps/v1", "StatefulSet", _meta(role), spec=spec)


def _claim(size: str, access: Any, **more: Any) -> Object:
    return {"accessModes": [access], "resources": {"requests": {"storage": Value(size)}}, **more}


_CALLERS = When(Test("callers"), [Splice("callers"), _pods_of("test")])
# Envoy passes on what callers send, and so reaches nodes as they do.
_NODE_CALLERS = When(
    Test("callers"),
    [
        Splice("callers"),
        *map(_pods_of, ("test", "access", "nodes")),
        When(Test("nearline"), _pods_of("nearline")),
    ],
)
_TOKEN_NAMES = ("nodes", "shards", "console", "metrics")
_FLINK = (Test("ingest"), Test("settings.ingest.runner", equal="flink"))
_REFUSALS = [
    Refuse((Test("name", longer=_NAME_MAX),), f"the name of the installation has more than {_NAME_MAX} characters"),
    Refuse((unless("image"),), "the value image is needed: an image with the command streamlearn"),
    Refuse((unless("settings.topics.root", prefix="kafka://"),), "settings.topics.root must begin with kafka://"),
    Refuse((unless("settings.registry.url", prefix="redis"),), "settings.registry.url must begin with redis:// or rediss://"),
    Refuse(
        (Test("fold"), unless("settings.features.store", prefix="redis")),
        "settings.features.store must begin with redis:// or rediss://, because fold is on",
    ),
    Refuse((Test("nearline"), unless("fold")), "fold must be on, because nearline is on"),
    Refuse(
        (Test("nearline"), Test("settings.retrieval.nearline", equal="off")),
        "settings.retrieval.nearline must be found or ranked, because nearline is on",
    ),
    Refuse((Test("workers"), unless("shards")), "shards must be above 0, because workers is above 0"),
    Refuse(
        (Test("workers"), unless("settings.workers.slices", above=1)),
        "settings.workers.slices must be above 1, because workers is above 0",
    ),
    Refuse((*_FLINK, unless("settings.ingest.job_endpoint")), "settings.ingest.job_endpoint is needed"),
    Refuse(
        (*_FLINK, Test("settings.ingest.environment", equal="LOOPBACK")),
        "settings.ingest.environment must not be LOOPBACK: Flink's task managers cannot reach ingest's own pod",
    ),
    *(
        Refuse((unless("tokens_secret"), unless(f"tokens.{name}")), f"tokens_secret is needed, or tokens.{name}")
        for name in _TOKEN_NAMES
    ),
]  # fmt: skip
_FIXED = (
    (None, "front", "listen", f"0.0.0.0:{_PORTS['grpc']}"),
    (None, "front", "http", f"0.0.0.0:{_PORTS['http']}"),
    (None, "console", "listen", f"0.0.0.0:{_PORTS['page']}"),
    (Test("access"), "access", "listen", f"0.0.0.0:{_PORTS['access']}"),
    (Test("workers"), "workers", "listen", [f"0.0.0.0:{_PORTS['workers']}"]),
    (None, "telemetry", "listen", f"0.0.0.0:{_PORTS['metrics']}"),
    (None, "telemetry", "token_file", f"{_TOKENS}/metrics"),
    (_HAS_STORE, "versions", "store", f"file://{_STORE}"),
)


def _configuration() -> list[Any]:
    settings = AppToml(_FIXED, f"@name@-shards-@index@.@name@-shards:{_PORTS['frames']}")
    config = _object("v1", "ConfigMap", _meta("app"), data={"app.toml": settings, Splice("application"): None})
    return [*_REFUSALS, config]


def _account(name: str, role: str, annotations: str) -> Any:
    meta = {"name": name, "labels": _labels(role), "annotations": Value(annotations)}
    return _object("v1", "ServiceAccount", meta, automountServiceAccountToken=False)


def _shared() -> list[Any]:
    accounts = [_account("@name@", "app", "account_annotations")]
    for role in _ROLES:
        annotations = f"roles.{role}.account_annotations"
        accounts.append(When(Test(annotations), _account(f"@name@-{role}", role, annotations)))
    secret = _object(
        "v1", "Secret", _meta("tokens"), stringData={name: Value(f"tokens.{name}") for name in _TOKEN_NAMES}
    )
    # An installation that is removed leaves its versions.
    meta = _meta("store") | {"annotations": {"helm.sh/resource-policy": "keep"}}
    spec = _claim("store_size", Value("store_access"), storageClassName=When(Test("store_class"), Value("store_class")))
    return [
        *accounts,
        When(unless("tokens_secret"), secret),
        When(_HAS_STORE, _object("v1", "PersistentVolumeClaim", meta, spec=spec)),
    ]


def _shards() -> list[Any]:
    command = f"ps --app {_APP} --shard $(POD_INDEX)/@shards@ --listen 0.0.0.0:{_PORTS['frames']}"
    probes = _pulse(_SHARD_START_S, has_readiness=True)
    shards = _stateful("shards", command, Value("shards"), end_s=_END_S, ports=["frames"], **probes)
    learners = [_pods_of("trainer"), When(Test("workers"), _pods_of("workers"))]
    return [
        When(Test("shards"), [shards, _service("shards", ["frames"], is_headless=True)]),
        When((Test("shards"), Test("network_policy")), _policy("shards", ["frames"], learners)),
    ]


def _trainer() -> list[Any]:
    claim = {"metadata": {"name": "state"}, "spec": _claim("state_size", "ReadWriteOnce")}
    claims = When(Test("state_size"), [claim])
    trainer = _stateful("trainer", f"train {_APP}", 1, claims, end_s=_LAST_VERSION_S, **_pulse(_START_S))
    # Before the trainer, which needs them: a hook after the installation would run too late for those who wait for it.
    topics = _container("ingest", f"topics {_APP} --create @partitions@") | {"name": "topics"}
    trainer["spec"]["template"]["spec"]["initContainers"] = When(Test("partitions"), [topics])
    service, port = _service("trainer", ["metrics"], is_headless=True), _PORTS["workers"]
    service["spec"]["ports"].append(When(Test("workers"), {"name": "workers", "port": port, "targetPort": "workers"}))
    (container,) = trainer["spec"]["template"]["spec"]["containers"]
    container["ports"].append(When(Test("workers"), {"name": "workers", "containerPort": port}))
    policy = _policy("trainer", ["workers"], [_pods_of("workers")], only=Test("workers"))
    return [trainer, service, When(Test("network_policy"), policy)]


def _workers() -> list[Any]:
    # They end when the trainer or a shard is away (status 75), and start again. Old ones do not fit a new trainer.
    command = f"work {_APP} --leader @name@-trainer:{_PORTS['workers']}"
    workers = _deployment("workers", command, Value("workers"), end_s=_END_S, **_pulse(_WORKER_START_S))
    policy = When((Test("workers"), Test("network_policy")), _policy("workers"))
    return [When(Test("workers"), workers), policy]


def _nodes() -> list[Any]:
    ports = ["grpc", "http"]
    count = When(unless("nodes_max"), Value("nodes"))  # else the autoscaler's own number would be overwritten
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    nodes = _deployment(
        "nodes", f"serve {_APP} --name $(POD_NAME)", count, rolling, ports=ports,
        end_s=Sum("settings.front.drain_s", _DRAINS, _NODE_END_S),
        startupProbe=_asked("/v2/health/live", "http", 5, _NODE_START_S // 5),
        livenessProbe=_asked("/v2/health/live", "http", 20, 3),
        readinessProbe=_asked("/v2/health/ready", "http", 3, 1),
    )  # fmt: skip
    busy = {
        "metric": {"name": "streamlearn_serving_lanes_busy_ratio"},
        "target": {"type": "AverageValue", "averageValue": Value("nodes_busy")},
    }
    scale = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "@name@-nodes"},
        "minReplicas": Value("nodes"), "maxReplicas": Value("nodes_max"),
        "metrics": [{"type": "Pods", "pods": busy}],
    }  # fmt: skip
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": _labels("nodes")}}
    return [
        nodes,
        _service("nodes", ports),
        _service("nodes", ports, "nodes-each", is_headless=True),
        _object("policy/v1", "PodDisruptionBudget", _meta("nodes"), spec=budget),
        When(Test("nodes_max"), _object("autoscaling/v2", "HorizontalPodAutoscaler", _meta("nodes"), spec=scale)),
        When(Test("network_policy"), _policy("nodes", ports, _NODE_CALLERS)),
    ]


def _console() -> list[Any]:
    probe = _asked("/", "page", 20, 3)
    probes = {"livenessProbe": probe, "readinessProbe": probe}
    console = _deployment("console", f"console {_APP}", end_s=_END_S, ports=["page"], **probes)
    return [
        When(Test("console"), [console, _service("console", ["page"])]),
        When((Test("console"), Test("network_policy")), _policy("console", ["page"], _CALLERS)),
    ]


def _access() -> list[Any]:
    command = f"access {_APP} --run --out /tmp/access --wait {_START_S}"
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    access = _deployment(
        "access", command, Value("access"), rolling, ports=["access"],
        end_s=Sum("settings.front.drain_s", 1, _END_S), **_pulse(_START_S, has_readiness=True),
    )  # fmt: skip
    return [
        When(Test("access"), [access, _service("access", ["access"])]),
        When((Test("access"), Test("network_policy")), _policy("access", ["access"], _CALLERS)),
    ]


def _pipeline() -> list[Any]:
    ingest = _deployment("ingest", f"ingest {_APP}", end_s=_LAST_VERSION_S, **_pulse(_START_S))
    fold = _deployment("fold", f"features fold {_APP}", end_s=_END_S, **_pulse(_START_S))
    nearline = _deployment("nearline", f"nearline {_APP}", end_s=_END_S, **_pulse(_START_S))
    parts = {"ingest": ingest, "fold": fold, "nearline": nearline}
    policies = [When((Test(name), Test("network_policy")), _policy(name)) for name in parts]
    return [*(When(Test(name), part) for name, part in parts.items()), *policies]


def _tests() -> list[Any]:
    """The pod of `helm test`: a node must answer. The Service that it asks has only nodes that are ready."""
    asks = _container("nodes", f"bench-serve @name@-nodes:{_PORTS['grpc']} --app {_APP} --concurrency 1 --seconds 1")
    asks["args"].append(When(Test("tls_secret"), _CA))
    pod = _pod("nodes", end_s=_END_S, has_key=False, containers=[asks], restartPolicy="Never")
    meta = _meta("test") | {
        "annotations": {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"}
    }
    return [_object("v1", "Pod", meta, spec=pod)]


FILES: dict[str, list[Any]] = {
    "configuration": _configuration(),
    "shared": _shared(),
    "shards": _shards(),
    "trainer": _trainer(),
    "workers": _workers(),
    "nodes": _nodes(),
    "console": _console(),
    "access": _access(),
    "pipeline": _pipeline(),
    "tests/answer": _tests(),
}
"""The templates of the objects, by the name of their file."""
