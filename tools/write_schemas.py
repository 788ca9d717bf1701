"""The files of `schemas/`: written from the code that generates them, so that neither can drift alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from streamlearn.schemas.app import app_schemas
from streamlearn.testing import small_app
from streamlearn.versions.format.manifest import Manifest
from tools.golden_records import golden_records

__all__ = ["FOLDER", "manifest_schema", "schema_files", "write_schemas"]

FOLDER = Path(__file__).parent.parent / "schemas"
_OF_AN_APP = ("impression", "action", "sample")


def schema_files() -> dict[str, bytes]:
    """What each file holds, by its path within the folder."""
    schemas = {
        f"example/{name}.avsc" if name in _OF_AN_APP else f"{name}.avsc": f"{schema.text}\n".encode()
        for name, schema in app_schemas(small_app()).items()
    }
    schemas["manifest.schema.json"] = manifest_schema()
    return schemas | {f"golden/{name}.bin": record for name, record in golden_records().items()}


def manifest_schema() -> bytes:
    """The JSON schema of a version's manifest."""
    schema = msgspec.json.encode(msgspec.json.schema(Manifest), order="deterministic")
    # In a JSON schema `$` is the end alone; in Python's patterns only `\\Z` is.
    return msgspec.json.format(schema.replace(rb"\\Z", b"$")) + b"\n"


def write_schemas(folder: Path) -> None:
    """Write every file.

    Args:
        folder: Where to.
    """
    for name, content in schema_files().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


if __name__ == "__main__":
    write_schemas(FOLDER)
