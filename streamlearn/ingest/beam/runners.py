"""Runners: what runs a pipeline, chosen by name, with the options each needs to be right.

A runner is never guessed: Beam's default falls back to one whose timers are wrong on topics that go on.
"""

from __future__ import annotations

import os
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

__all__ = ["RUNNERS", "counters_of", "end_at_once", "kind_of", "require_job_server", "runner_options"]

# Names that people use, and what they mean here.
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
_PROCESS_WORKER = "use_loopback_process_worker"


def require_job_server(options: PipelineOptions) -> None:
    """See that somebody listens where a job server is to be: Beam would wait for it as long as jobs may run.

    Raises:
        ServiceError: Nobody does.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    if not endpoint or endpoint == "embed":
        return
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except (OSError, ValueError, OverflowError) as error:
        message = f"cannot reach a job server at {endpoint}: {error}"
        hint = "start the Beam job server for your Flink version, or set ingest.job_endpoint to its HOST:PORT"
        raise ServiceError(message, help=hint) from None


def runner_options(
    settings: IngestSettings, *, runner: str = "", is_bounded: bool = False, more: Sequence[str] = ()
) -> PipelineOptions:
    """Beam's options for a runner.

    Args:
        settings: Section `ingest`.
        runner: A name, as of `--runner`; the settings' when empty.
        is_bounded: Whether the input ends; a backfill of files does, topics do not.
        more: Further Beam options, which come after and so win.

    Raises:
        UsageError: No such runner; one that is wrong on this input; Flink without a job server; Prism with a worker
            elsewhere.
    """
    name = runner or settings.runner
    kind = kind_of(name)
    if kind == "direct" and not is_bounded:
        message = f"{name} cannot run on topics: its event-time timers fire at once on unbounded input"
        raise UsageError(message, help="choose --runner prism on this machine, or flink on a cluster")
    flags = {"prism": _prism, "flink": _flink, "direct": _direct}[kind](settings)
    if kind != "direct":
        # Beam ends the stream of a job's states after this long, and takes that for the job's failure: 5 minutes by
        # default.
        flags.append(f"--job_server_timeout={_JOB_S_MAX}")
    streaming = [] if is_bounded else ["--streaming"]
    options = PipelineOptions([*flags, *streaming, *more])
    if kind == "prism":
        _require_own_worker(options)
    return options


def kind_of(name: str) -> str:
    """What a runner's name means here.

    Raises:
        UsageError: No such runner.

    Examples:
        >>> kind_of("PrismRunner")
        'prism'
    """
    kind = RUNNERS.get(name.lower())
    if kind is None:
        message = f"unknown runner {name!r}"
        raise UsageError(message, help="choose prism (this machine) or flink (a cluster)")
    return kind


def counters_of(result: Any, namespace: str) -> dict[str, int]:
    """What a job has counted, by name.

    Beam's own word for it is None where a runner says 0 and nothing of attempts, as Prism does.

    Args:
        result: Of the job.
        namespace: Of the counters.
    """
    found = result.metrics().query(MetricsFilter().with_namespace(namespace))["counters"]
    return {one.key.metric.name: int(one.committed or one.attempted or 0) for one in found}


def _prism(settings: IngestSettings) -> list[str]:
    # Prism splits bundles that are slow, and then lets go of the keys of what it took out of one, though the rest of it
    # still works on them: two bundles would change one lot at once, and what one of them kept would be lost.
    found = ["--runner=PrismRunner", "--environment_type=LOOPBACK", "--experiments=prism_disable_sdf_split"]
    location = settings.prism_location or _fetched_prism()
    if location:
        found.append(f"--prism_location={location}")
    return found


def _require_own_worker(options: PipelineOptions) -> None:
    """See that Prism's worker is this process: it often does not hear of the death of another, and waits for ever."""
    asked = options.view_as(PortableOptions).environment_type
    experiments: Any = options.view_as(DebugOptions)
    if asked == "LOOPBACK" and not experiments.lookup_experiment(_PROCESS_WORKER, False):
        return
    what = f"environment type {asked}" if asked != "LOOPBACK" else f"experiment {_PROCESS_WORKER}"
    message = f"prism uses the ingest process itself as its worker; {what} would use another"
    raise UsageError(message, help="remove that option, or choose --runner flink for workers elsewhere")


def _fetched_prism() -> str:
    """The binary that `make fetch` keeps for this release of Beam; empty when there is none, and Beam downloads it."""
    binary = cache_folder() / f"prism-{beam_version}" / "prism"
    return str(binary) if binary.is_file() else ""


def _flink(settings: IngestSettings) -> list[str]:
    if not settings.job_endpoint:
        message = "ingest.job_endpoint is not set; runner flink needs a job server"
        hint = "start the Beam job server for your Flink version and set ingest.job_endpoint to its HOST:PORT"
        raise UsageError(message, help=hint)
    found = [
        "--runner=PortableRunner",
        f"--job_endpoint={settings.job_endpoint}",
        f"--environment_type={settings.environment}",
        f"--parallelism={settings.parallelism}",
        f"--checkpointing_interval={round(settings.checkpoint_s * 1000)}",
        # Without it the first stage's bundle stays open for ever, which looks as if nothing ran.
        f"--max_bundle_time_mills={settings.bundle_ms_max}",
        # Without it a stage keeps what a checkpoint finds unfinished until it has work again: of the first stage, which
        # never has, that is all there is to read, and the job stands still.
        "--finish_bundle_before_checkpointing",
    ]
    if settings.artifact_endpoint:
        found.append(f"--artifact_endpoint={settings.artifact_endpoint}")
    if settings.environment_config:
        found.append(f"--environment_config={settings.environment_config}")
    return found


def _direct(_: IngestSettings) -> list[str]:
    return ["--runner=FnApiRunner"]


def end_at_once(number: int) -> None:
    """End this process as a signal would, and the runner that it started on this machine with it.

    Nothing is written any more. A runner that was started elsewhere goes on, and is to be cancelled there.

    Args:
        number: The signal.
    """
    for task in Path("/proc/self/task").glob("*/children"):  # where there is no /proc, a runner ends by itself or not
        for child in task.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
    os._exit(128 + number)
