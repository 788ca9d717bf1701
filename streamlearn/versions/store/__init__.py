"""Store: where files of versions lie, in a folder, in memory or in an object store."""

__all__: list[str] = []
