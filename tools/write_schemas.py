"""The files of `schemas/`, generated from the code."""

from __future__ import annotations

from pathlib import Path

import msgspec

from streamlearn.schemas.app import app_schemas
from streamlearn.testing import small_app
from streamlearn.versions.format.manifest import Manifest
from tools.golden_records import golden_records

__all__ = ["FOLDER", "manifest_schema", "schema_files", "write_schemas"]

FOLDER = Path(__file__).parent.parent / "schemas"
_APP_SCHEMAS = ("impression", "action", "sample")


def schema_files() -> dict[str, bytes]:
    """Return the content of each file, by its path in the folder."""
    schemas = {
        f"example/{name}.avsc" if name in _APP_SCHEMAS else f"{name}.avsc": f"{schema.text}\n".encode()
        for name, schema in app_schemas(small_app()).items()
    }
    schemas["manifest.schema.json"] = manifest_schema()
    return schemas | {f"golden/{name}.bin": record for name, record in golden_records().items()}


def manifest_schema() -> bytes:
    """Return the JSON schema of a version's manifest."""
    schema = msgspec.json.encode(msgspec.json.schema(Manifest), order="deterministic")
    # `$` in a JSON schema means the same as `\\Z` in Python.
    return msgspec.json.format(schema.replace(rb"\\Z", b"$")) + b"\n"


def write_schemas(folder: Path) -> None:
    """Write every file into a folder."""
    for name, content in schema_files().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


if __name__ == "__main__":
    write_schemas(FOLDER)
