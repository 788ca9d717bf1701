"""Gateway: Envoy in front of the nodes of applications, configured from settings and the registry."""

__all__: list[str] = []
