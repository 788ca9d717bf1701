"""Device: where dense weights learn, and the TensorFlow setup for it. Only this module queries the hardware."""

from __future__ import annotations

import tensorflow as tf

from streamlearn.errors import UsageError
from streamlearn.settings.trainer import TrainerSettings

__all__ = ["device_of"]


def device_of(settings: TrainerSettings) -> str:
    """Set TensorFlow up and return its name of the device.

    Raises:
        UsageError: The settings require a GPU and TensorFlow finds none, or TensorFlow already runs with another
            number of threads.
    """
    if settings.threads and tf.config.threading.get_intra_op_parallelism_threads() != settings.threads:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
        except RuntimeError as error:
            message = f"TensorFlow is already in use in this process, with a thread count other than {settings.threads}"
            raise UsageError(message, help="remove trainer.threads, or train in a process of its own") from error
    gpus = tf.config.list_physical_devices("GPU") if settings.device != "cpu" else []
    if settings.device == "gpu" and not gpus:
        message = "trainer.device is gpu, but TensorFlow finds none"
        raise UsageError(message, help="see its log for missing libraries, or choose trainer.device = 'auto'")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return "/GPU:0" if gpus else "/CPU:0"
