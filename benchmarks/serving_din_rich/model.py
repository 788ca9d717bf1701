"""DIN with normalised layers and dropout."""

from streamlearn.models import Din


def rich_din() -> Din:
    """Return the model."""
    return Din(norm="layer", dropout=0.1)
