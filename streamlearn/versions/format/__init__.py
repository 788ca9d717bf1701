"""Format: the files of a version, how they are written, and how they become tables again."""

__all__: list[str] = []
