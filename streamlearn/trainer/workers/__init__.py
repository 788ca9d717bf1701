"""Workers: one model that several processes learn, with the same bits whatever their number."""

__all__: list[str] = []
