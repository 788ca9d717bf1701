"""Join: the impressions and actions of one lot become rows with labels."""

__all__: list[str] = []
