"""The console: a web page that shows a model's versions and nodes, and moves its pointer."""

from streamlearn.console.server import ConsoleServer
from streamlearn.console.snapshot import Gathered
from streamlearn.console.state import state_of

__all__ = ["ConsoleServer", "Gathered", "state_of"]
