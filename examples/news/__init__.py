"""News: articles that live for hours, so that fresher versions are worth much."""
