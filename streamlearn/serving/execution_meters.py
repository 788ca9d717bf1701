"""ExecutionMeters: the metrics of executables, lanes and compilations of this process."""

from __future__ import annotations

from streamlearn.telemetry import counter, gauge

__all__ = ["ExecutionMeters"]


class ExecutionMeters:
    """Figures of all graphs of a process."""

    def __init__(self) -> None:
        self.compiles = counter("serving", "compiles", "Executables that were made, or loaded from the cache")
        self.compile_seconds = counter("serving", "compile_seconds", "Time spent making or loading them")
        self.compiled = gauge("serving", "compiled", "ratio", "Share of serving.compiles_max that is used up")
        self.fallbacks = counter("serving", "fallbacks", "Runs of a graph on a shape without an executable", ["graph"])
        self.asked = counter(
            "serving", "compile_asked", "Shapes by what became of the wish to compile them", ["outcome"]
        )
        self.queue = gauge("serving", "compile_queue", "ratio", "Share of serving.compile_queue_max that waits")
        self.cache = gauge("serving", "compile_cache", "bytes", "Compiled code that is kept from start to start")
        self.executions = counter("serving", "executions", "Executions by what became of them", ["outcome"])
        self.lane_failures = counter("serving", "lane_failures", "Times a lane began anew")
        self.lane_retries = counter("serving", "lane_retries", "TensorBatches that another lane tried once more")
        self.lane_recycles = counter("serving", "lane_recycles", "Lane processes that a fresh one took over from")
        self.golden = gauge(
            "serving", "golden_difference", "ratio", "Largest difference of golden scores, of what may be"
        )
