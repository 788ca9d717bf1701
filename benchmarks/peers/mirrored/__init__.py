"""The parts of peers of TensorFlow's MultiWorkerMirroredStrategy: processes that `benchmarks.workers` starts."""
