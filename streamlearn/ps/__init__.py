"""The parameter server: the tables of a model on one or several shards, and the versions cut from them."""

from streamlearn.ps.client import PsClient
from streamlearn.ps.orders import Epoch
from streamlearn.ps.place import Place
from streamlearn.ps.server import ShardServer
from streamlearn.ps.shelf import Shelf
from streamlearn.ps.survey import Door, survey

__all__ = ["Door", "Epoch", "Place", "PsClient", "ShardServer", "Shelf", "survey"]
