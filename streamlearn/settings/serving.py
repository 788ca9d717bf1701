"""Settings of serving: shapes that are compiled, devices, and where compiled code is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["ServingSettings"]

_Rows = Annotated[int, Meta(ge=1, le=65_536)]
_Length = Annotated[int, Meta(ge=1, le=65_536)]


class ServingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How requests are scored: which shapes have executables, where they run, and what compiling may cost."""

    users_buckets: Annotated[
        list[_Rows],
        Meta(
            min_length=1,
            max_length=16,
            description="How many requests one execution may hold, growing: each has an executable of the user graph, "
            "padded to. The last is also how many users the score graph always takes.",
        ),
    ] = field(default_factory=lambda: [1, 4, 16, 32])
    candidates_buckets: Annotated[
        list[_Rows],
        Meta(
            min_length=1,
            max_length=32,
            description="How many candidates one execution may hold, growing: each has an executable of the score "
            "graph. More of them pad less and take longer to start with.",
        ),
    ] = field(default_factory=lambda: [8, 16, 32, 64, 128, 256])
    lengths: Annotated[
        list[_Length],
        Meta(
            max_length=2,
            description="How many places of a history have executables of their own, growing; short histories cost "
            "less in the first of two. The last is what the features say, which is all there is by default.",
        ),
    ] = field(default_factory=list)
    device: Annotated[
        Literal["auto", "cpu", "gpu"], Meta(description="Where graphs run; `auto` takes all GPUs where there are some.")
    ] = "auto"
    lanes: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Executions at once: threads on CPUs, one core each; on GPUs each has memory and streams of "
            "its own, and they are shared out among the GPUs.",
        ),
    ] = 1
    lane_nice: Annotated[
        int,
        Meta(
            ge=0,
            le=9,
            description="How far lanes give way to the threads that take requests in, as niceness. 7 for a model that "
            "costs less than taking its requests in: where processors are short, these wait to be merged then, and not "
            "to be read. For other models 0.",
        ),
    ] = 0
    lane_devices: Annotated[
        Literal["auto", "shared", "own"],
        Meta(
            description="Whether each lane has a logical device of its own. `auto` does so for several lanes of a GPU; "
            "on CPUs it gains nothing and compiles once more for each."
        ),
    ] = "auto"
    lane_memory_bytes: Annotated[
        int,
        Meta(
            ge=1 << 26,
            le=1 << 40,
            description="Memory of a GPU that each of several lanes takes for itself, where they have own devices "
            "or processes.",
        ),
    ] = 4 << 30
    lane_processes: Annotated[
        bool,
        Meta(
            description="Whether each lane is a process, which may die without the node; it costs a TensorFlow in "
            "memory for each, and a little time an execution."
        ),
    ] = False
    lane_gpus: Annotated[
        list[str],
        Meta(
            max_length=64,
            description="CUDA_VISIBLE_DEVICES of each lane process, in turn; empty leaves the environment as it is.",
        ),
    ] = field(default_factory=list)
    mps_percent: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of each lane process: the share of a GPU's multiprocessors "
            "it may take under MPS. 0 leaves the environment as it is.",
        ),
    ] = 0
    mps_folder: Annotated[
        str,
        Meta(
            description="CUDA_MPS_PIPE_DIRECTORY of each lane process: where the MPS daemon listens. Empty leaves the "
            "environment as it is."
        ),
    ] = ""
    lane_answer_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long a lane process may take for one execution; one that takes longer is killed.",
        ),
    ] = 30.0
    lane_failures_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="How often in a row a lane begins anew when it cannot take work or hand it back, or its "
            "process ends, before it ends. A failed execution is none of these: it fails its own requests alone.",
        ),
    ] = 10
    cache_folder: Annotated[
        str,
        Meta(
            description="Where compiled code is kept from one start to the next. Empty is the folder `compiled` in "
            "STREAMLEARN_CACHE. Who may write there may run code in this process: give it to nobody else."
        ),
    ] = ""
    cache_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Bytes of compiled code that are kept for one kind of machine; beyond it what was longest not "
            "read goes.",
        ),
    ] = 1 << 30
    compiles_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Executables of one process life, some megabytes each: TensorFlow frees none. Shapes beyond it "
            "run uncompiled; a ladder beyond it is refused.",
        ),
    ] = 256
    compile_calls_min: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="How often a shape without an executable has to come before one is compiled for it.",
        ),
    ] = 100
    compile_queue_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Shapes that may wait to be compiled; others have to come again.")
    ] = 16
    compile_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long one compilation may take, or the start of its process or a lane's.",
        ),
    ] = 120.0
    compile_failures_max: Annotated[
        int,
        Meta(ge=1, le=1_000, description="Compilations that may fail in a row before no more are tried."),
    ] = 5
    cost_runs: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Runs of each executable that its cost is the median of, before a node is ready.",
        ),
    ] = 20
    golden_difference_max: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="How far scores of golden requests may be from what training said, in logits, and in shares of "
            "logits above 1. Raise it where training or serving multiplies in other numbers than float32.",
        ),
    ] = 1e-5
