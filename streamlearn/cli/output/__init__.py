"""How verbs print tables, units and progress."""

__all__: list[str] = []
