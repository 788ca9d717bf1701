"""Device: where lanes run, and the TensorFlow configuration for them, which is set once in a process."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from streamlearn.errors import UsageError
from streamlearn.models.tf_calls import Place
from streamlearn.settings import ServingSettings

__all__ = ["cpu_only", "lane_places"]


def lane_places(settings: ServingSettings) -> list[Place]:
    """Configure TensorFlow and return the device of each lane; several lanes may share one.

    Operations on CPUs use one thread each. Lanes get logical devices of their own if the settings say so.
    """
    gpus = tf.config.list_physical_devices("GPU") if settings.device != "cpu" else []
    if settings.device == "gpu" and not gpus:
        message = "serving.device is gpu, but TensorFlow finds none"
        raise UsageError(message, help="see its log for missing libraries, or choose serving.device = 'auto'")
    physical = gpus or tf.config.list_physical_devices("CPU")[:1]
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        if gpus:
            # Multiply float32 matrices in float32, as training did for the golden requests.
            tf.config.experimental.enable_tensor_float_32_execution(False)
        for number, device in enumerate(physical):
            _divide(settings, device, len(range(number, settings.lanes, len(physical))))
    except RuntimeError as error:
        message = f"TensorFlow is already in use in this process: {error}"
        raise UsageError(message, help="serve in a process of its own, and set up the lanes first") from error
    names = [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]
    return [Place(names[lane % len(names)]) for lane in range(settings.lanes)]


def cpu_only() -> None:
    """Configure TensorFlow for a process whose lanes are other processes, which it leaves the GPUs to."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        message = f"TensorFlow is already in use in this process: {error}"
        raise UsageError(message, help="serve in a process of its own") from error


def _divide(settings: ServingSettings, device: Any, lanes: int) -> None:
    """Divide a device among its lanes, or leave it whole."""
    is_gpu = device.device_type == "GPU"
    if is_gpu and settings.lane_processes:
        # The only device of this process; other processes use other parts of the same GPU.
        part = tf.config.LogicalDeviceConfiguration(memory_limit=settings.lane_memory_bytes >> 20)
        tf.config.set_logical_device_configuration(device, [part])
        return
    is_own = lanes > 1 and (settings.lane_devices == "own" or (settings.lane_devices == "auto" and is_gpu))
    if is_own:
        limit = settings.lane_memory_bytes >> 20 if is_gpu else None
        parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for _ in range(lanes)]
        tf.config.set_logical_device_configuration(device, parts)
    elif is_gpu:
        tf.config.experimental.set_memory_growth(device, True)
