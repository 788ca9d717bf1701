"""Settings of `streamlearn access`: where Envoy listens, how it chooses a node, and experiments."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["Arm", "Experiment", "GatewaySettings"]


class Arm(Struct, frozen=True, forbid_unknown_fields=True):
    """One arm of an experiment."""

    name: str
    app: str
    """The application that answers, by its name."""
    share: Annotated[float, Meta(ge=0, le=1)]
    """Share of the users."""
    version: Annotated[int, Meta(ge=1)] | Literal["active", "canary"] | None = None
    """The version that answers: a number, `canary`, or `active`, which is never the canary. By default what all other
    callers of the application get."""


class Experiment(Struct, frozen=True, forbid_unknown_fields=True):
    """A division of the users of a model among applications that answer to its name, or versions of them."""

    name: str
    """Decides with `x-route-key` which arm a user gets: experiments of other names divide users independently."""
    arms: Annotated[list[Arm], Meta(min_length=1, max_length=16)]


class GatewaySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How Envoy leads callers to the nodes of applications."""

    listen: str = ""
    """Address of Envoy, HOST:PORT, for gRPC and HTTP alike; needed by `streamlearn access`. If it is set, `streamlearn
    up` runs Envoy. A host other than loopback needs nodes with a token."""
    balance: Literal["load", "user"] = "load"
    """How a node is chosen. `load`: nodes get requests by the load that their answers report. `user`: all requests with
    one `x-route-key` go to one node while it is not overloaded; choose it if nodes keep something for each user."""
    trust_headers: bool = False
    """Whether callers may send `x-route-key`, `x-priority`, `x-arm`, `x-version` and `x-deadline-ms`. Otherwise Envoy
    removes them. Turn it on if only services of your own reach `access.listen`. `balance = "user"` and experiments need
    it."""
    experiments: Annotated[list[Experiment], Meta(max_length=1)] = field(default_factory=list)
    """An experiment on the callers of this application's model: its name, and arms with name, app, share and perhaps a
    version: a number, `"canary"` or `"active"`. Shares sum to 1. A user, by `x-route-key`, keeps the arm while the
    shares stay as they are."""
    follow_s: Fixed[float] = 1.0
    """How often the registry is read."""
    ejection_percent_max: Fixed[int] = 50
    """Most nodes of an application that are left out at once because they fail requests."""
    retry_percent: Fixed[float] = 20.0
    """Most retries as a share of the requests in progress."""
    balance_percent: Fixed[int] = 125
    """With `balance = "user"`, most requests of a node as a share of the mean."""
