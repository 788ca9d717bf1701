"""ExecutionMeters: the metrics of executables, lanes and compilations of this process."""

from __future__ import annotations

from streamlearn.telemetry import counter, gauge

__all__ = ["ExecutionMeters"]


class ExecutionMeters:
    """Figures of all graphs of a process together."""

    def __init__(self) -> None:
        self.compiles = counter("serving", "compiles", "Executables compiled or loaded from the cache")
        self.compile_seconds = counter("serving", "compile_seconds", "Time spent compiling or loading executables")
        self.compiled = gauge("serving", "compiled", "ratio", "Executables as a share of serving.compiles_max")
        self.fallbacks = counter("serving", "fallbacks", "Runs of a graph on a shape without an executable", ["graph"])
        self.asked = counter("serving", "compile_asked", "Shapes to compile, by outcome", ["outcome"])
        self.queue = gauge("serving", "compile_queue", "ratio", "Share of the compile queue in use")
        self.cache = gauge("serving", "compile_cache", "bytes", "Size of the compile cache on disk")
        self.executions = counter("serving", "executions", "Executions by outcome", ["outcome"])
        self.lane_failures = counter("serving", "lane_failures", "Times a lane was restarted")
        self.lane_retries = counter("serving", "lane_retries", "TensorBatches tried again on another lane")
        self.lane_recycles = counter("serving", "lane_recycles", "Lane processes replaced by a fresh one")
        self.golden = gauge(
            "serving", "golden_difference", "ratio", "Largest difference of golden scores, as a share of the limit"
        )
