"""The GPU kit: graphs of nodes and trainers for machines without TensorFlow, and one command that measures a GPU."""
