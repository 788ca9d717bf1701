"""Beam: the steps of the pipeline, the runners, and what runners need to be right."""

__all__: list[str] = []
