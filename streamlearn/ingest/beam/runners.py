"""Runners: what runs a pipeline, by name, with the options that each needs to be correct.

The runner is never guessed: Beam's default falls back to one whose timers are wrong on unbounded topics.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, PortableOptions
from apache_beam.version import __version__ as beam_version

from streamlearn.cache import cache_folder
from streamlearn.errors import ServiceError, UsageError
from streamlearn.settings.ingest import IngestSettings

__all__ = [
    "RUNNERS",
    "counters_of",
    "end_at_once",
    "has_own_workers",
    "kind_of",
    "require_job_server",
    "runner_options",
]

# Names that people use, and their kinds.
RUNNERS = {
    "prism": "prism",
    "prismrunner": "prism",
    "flink": "flink",
    "flinkrunner": "flink",
    "direct": "direct",
    "directrunner": "direct",
    "fnapirunner": "direct",
    "bundlebaseddirectrunner": "direct",
    "switchingdirectrunner": "direct",
}

_JOB_S_MAX = 10 * 365 * 86_400
_REACH_S = 10.0
_PORT_MAX = 65_535
_PROCESS_WORKER = "use_loopback_process_worker"


def require_job_server(options: PipelineOptions) -> None:
    """Check that a job server listens at its endpoint: Beam would wait for it as long as jobs may run.

    Raises `ServiceError` if the endpoint cannot be reached.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    if not endpoint or endpoint == "embed":
        return
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), _port(port)), _REACH_S).close()
    except (OSError, ValueError) as error:
        message = f"cannot reach a job server at {endpoint}: {error}"
        hint = "start the Beam job server for your Flink version, or set ingest.job_endpoint to its HOST:PORT"
        raise ServiceError(message, help=hint) from None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _PORT_MAX:  # resolvers take a larger one modulo 65,536
        message = f"{text!r} is not a port"
        raise ValueError(message)
    return int(text)


def runner_options(
    settings: IngestSettings, *, runner: str = "", is_bounded: bool = False, more: Sequence[str] = ()
) -> PipelineOptions:
    """Return Beam's options for a runner: the setting, unless `runner` names another one.

    `more` are further Beam options, which override the others. A backfill's input is bounded, topics are not.

    Raises:
        UsageError: The runner is unknown, or wrong for this input; Flink without a job server; Prism with another
            worker.
    """
    name = runner or settings.runner
    kind = kind_of(name)
    if kind == "direct" and not is_bounded:
        message = f"{name} cannot run on topics: its event-time timers fire at once on unbounded input"
        raise UsageError(message, help="choose --runner prism on this machine, or flink on a cluster")
    flags = _prism(settings) if kind == "prism" else _flink(settings) if kind == "flink" else ["--runner=FnApiRunner"]
    if kind != "direct":
        # After this time (5 minutes by default) Beam ends the stream of a job's states, and reports the job as failed.
        flags.append(f"--job_server_timeout={_JOB_S_MAX}")
    streaming = [] if is_bounded else ["--streaming"]
    options = PipelineOptions([*flags, *streaming, *more])
    if kind == "prism":
        _require_own_worker(options)
    return options


def kind_of(name: str) -> str:
    """Return the kind of a runner's name. Raises `UsageError` if it is unknown.

    Examples:
        >>> kind_of("PrismRunner")
        'prism'
    """
    kind = RUNNERS.get(name.lower())
    if kind is None:
        message = f"unknown runner {name!r}"
        raise UsageError(message, help="choose prism (this machine) or flink (a cluster)")
    return kind


def has_own_workers(options: PipelineOptions) -> bool:
    """Whether all workers of a job with these options run in this process."""
    return bool(options.view_as(PortableOptions).environment_type == "LOOPBACK")


def counters_of(result: Any, namespace: str) -> dict[str, int]:
    """Return what a job has counted in a namespace, by name.

    `committed` is None where a runner reports 0, or reports no attempts, as Prism does.
    """
    counters = result.metrics().query(MetricsFilter().with_namespace(namespace))["counters"]
    return {counter.key.metric.name: int(counter.committed or counter.attempted or 0) for counter in counters}


def _prism(settings: IngestSettings) -> list[str]:
    # Prism splits slow bundles, and then releases the keys of the part it took out, although the rest still uses them:
    # two bundles would change one lot at once, and the state of one of them would be lost.
    flags = ["--runner=PrismRunner", "--environment_type=LOOPBACK", "--experiments=prism_disable_sdf_split"]
    # Where `make fetch` puts the one that it builds, put that of earlier releases, or puts the one that Beam downloads,
    # which is open to the network.
    kinds = ("-loopback-2", "-loopback", "")
    fetched = [cache_folder() / f"prism-{beam_version}{kind}" / "prism" for kind in kinds]
    if location := settings.prism_location or next((str(path) for path in fetched if path.is_file()), ""):
        flags.append(f"--prism_location={_changeable(location)}")
    return flags


def _changeable(location: str) -> str:
    """Return the location of a copy if the binary is on a read-only file system, as in a container.

    Beam changes the mode of the binary, and ends if it cannot.
    """
    if not Path(location).is_file() or not os.statvfs(location).f_flag & os.ST_RDONLY:
        return location
    copy = cache_folder() / f"prism-{beam_version}-copy" / "prism"
    copy.parent.mkdir(parents=True, exist_ok=True)
    part = copy.with_name(f"prism.{os.getpid()}")
    shutil.copy(location, part)
    part.replace(copy)
    return str(copy)


def _require_own_worker(options: PipelineOptions) -> None:
    """Check that Prism's worker is this process: it often misses the death of another, and waits forever."""
    environment = options.view_as(PortableOptions).environment_type
    experiments: Any = options.view_as(DebugOptions)
    if environment == "LOOPBACK" and not experiments.lookup_experiment(_PROCESS_WORKER, False):
        return
    what = f"environment type {environment}" if environment != "LOOPBACK" else f"experiment {_PROCESS_WORKER}"
    message = f"prism uses the ingest process itself as its worker; {what} would use another"
    raise UsageError(message, help="remove that option, or choose --runner flink for workers elsewhere")


def _flink(settings: IngestSettings) -> list[str]:
    if not settings.job_endpoint:
        message = "ingest.job_endpoint is not set; runner flink needs a job server"
        hint = "start the Beam job server for your Flink version and set ingest.job_endpoint to its HOST:PORT"
        raise UsageError(message, help=hint)
    flags = [
        "--runner=PortableRunner",
        f"--job_endpoint={settings.job_endpoint}",
        f"--environment_type={settings.environment}",
        f"--parallelism={settings.parallelism}",
        # Each poll of a reader adds a state that is never removed, and each state takes memory for every group of
        # keys, whose number this is. Flink's default is 128; more groups than lots are of no use.
        f"--max_parallelism={max(settings.parallelism, settings.lots)}",
        f"--checkpointing_interval={round(settings.checkpoint_s * 1000)}",
        # Without it the first stage's bundle stays open forever, and nothing seems to run.
        f"--max_bundle_time_mills={settings.bundle_ms_max}",
        # Without it a stage keeps elements that a checkpoint finds unfinished until it has work again. The first stage
        # never has, so the job would stand still.
        "--finish_bundle_before_checkpointing",
    ]
    if settings.artifact_endpoint:
        flags.append(f"--artifact_endpoint={settings.artifact_endpoint}")
    if settings.environment_config:
        flags.append(f"--environment_config={settings.environment_config}")
    return flags


def end_at_once(number: int) -> None:
    """End this process as a signal would, and with it the runner that it started on this machine.

    Nothing more is written. A runner that was started elsewhere continues; cancel it there.
    """
    for task in Path("/proc/self/task").glob("*/children"):  # without /proc the runner is not ended
        for child in task.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
    os._exit(128 + number)
