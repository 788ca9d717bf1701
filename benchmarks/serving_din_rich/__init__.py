"""The application of `serving_din` with everything that a model may have besides."""
