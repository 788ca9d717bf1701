"""streamlearn: online recommendation, from behaviour events to a better served model, minutes later.

Importing this package loads nothing heavy: not TensorFlow, Beam, Kafka, Redis or the native module.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
