"""Format: the files of a version, and how they are written and loaded into tables."""

__all__: list[str] = []
