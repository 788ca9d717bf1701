"""Access: which addresses other machines reach, the token that they then have to send, and certificates."""

__all__: list[str] = []
