"""Reading: both event topics of a partition as one stream with a watermark."""

__all__: list[str] = []
