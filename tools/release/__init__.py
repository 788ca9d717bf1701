"""Release: `python -m tools.release`; wheels, the source, a bill of materials, licences and sums, in `dist/`."""
