//! TensorBatch: which requests a free lane takes together. A pure state machine; it has no clock, no thread and no queue of its own.
