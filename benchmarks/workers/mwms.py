"""The peer MultiWorkerMirroredStrategy: two processes that learn DeepFM together, and a supervisor of ours.

When a process dies, the sum that the other one waits for fails, and TensorFlow says that only a restart helps. So the
supervisor starts both again, from the newest checkpoint.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.peers.training_trial import WARM_STEPS
from benchmarks.trainer_samples import STEP_SAMPLES, Workload
from benchmarks.workers.cluster import mirrored_variables
from benchmarks.workers.crew import Crew
from benchmarks.workers.halves import write_halves
from streamlearn.errors import ServiceError

__all__ = ["MirroredJob"]

_KEYS, _SEED = 100_000, 1
_PROCESSES = 2
_SAVES_BEFORE_DEATH = 2
_AFTER_SAVE_S = 0.5  # in the middle between two checkpoints
_MODULE = "benchmarks.peers.mirrored.worker"


class MirroredJob:
    """The two processes; they are started when they are needed.

    Attributes:
        lost_steps: The steps that the newest recovery learned again.
        noticed_s: The time from the death until the other process noticed it, at the newest recovery.
        cpu_us_per_sample: The processor's time of a sample in the newest window, of both processes together.
    """

    def __init__(self, folder: Path, *, keys_count: int = _KEYS, steps: int = 200) -> None:
        """Write the samples.

        Args:
            folder: A folder for samples, checkpoints and logs.
            keys_count: Number of keys.
            steps: Number of different steps; after the last the job begins again with the first.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._keys_count = folder, keys_count
        self._crew: Crew | None = None
        self.lost_steps, self.noticed_s, self.cpu_us_per_sample = 0, 0.0, 0.0
        write_halves(Workload(keys_count, _SEED).steps(steps), folder)

    def window(self, steps: int = 50) -> float:
        """Learn some steps without checkpoints, and return samples per second; the first call waits until it is ready.

        Raises:
            ServiceError: A process failed, or the processes have different models.
        """
        answers = self._ready().asked(f"learn {steps}")
        if len({(answer["digest"], answer["loss"]) for answer in answers}) > 1:
            message = f"the processes do not have the same model: {answers}"
            raise ServiceError(message, help="its figures would mean nothing")
        samples = steps * STEP_SAMPLES
        self.cpu_us_per_sample = 1e6 * sum(answer["cpu_s"] for answer in answers) / samples
        return float(samples / max(answer["took_s"] for answer in answers))

    def recovery_s(self) -> float:
        """Kill a process at full speed, and return the seconds from there to the first step learned after a restart.

        The first process saves a checkpoint every second; the second one is killed between two of them.

        Raises:
            ServiceError: A process did not start, learn or notice the death.
        """
        crew = self._ready()
        crew.asked("train")
        for _ in range(_SAVES_BEFORE_DEATH):
            saved = crew.heard(0)
        time.sleep(_AFTER_SAVE_S)
        killed_s = time.monotonic()
        crew.processes[1].kill()
        if not crew.ended():
            message = "a process did not notice the death of the other one"
            raise ServiceError(message, help="look at what it said")
        while not (end := crew.heard(0)).get("failed"):
            pass  # it has saved once more
        self.close()
        crew = self._started()
        again, _ = crew.asked("train")
        if again["step"] <= saved["step"]:
            message = f"the job went on at step {again['step']}, and not after step {saved['step']}"
            raise ServiceError(message, help="look at its checkpoints")
        self.noticed_s, self.lost_steps = end["at_s"] - killed_s, end["step"] - again["step"] + 1
        self.close()
        return float(again["at_s"] - killed_s)

    def close(self) -> None:
        """Kill the processes."""
        if self._crew is not None:
            self._crew.close()
        self._crew = None

    def _ready(self) -> Crew:
        """Return the processes, after they have chosen the faster way to learn."""
        if self._crew is not None:
            return self._crew
        crew = self._started()
        crew.asked(f"learn {WARM_STEPS}")
        return crew

    def _started(self) -> Crew:
        words = [[_MODULE, str(self._folder), str(half), str(self._keys_count)] for half in range(_PROCESSES)]
        self._crew = Crew(words, self._folder / "logs", mirrored_variables(_PROCESSES))
        self._crew.all_heard()
        return self._crew
