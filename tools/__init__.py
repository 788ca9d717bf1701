"""What people and tests need beside the package; nothing here is installed with it."""

__all__: list[str] = []
