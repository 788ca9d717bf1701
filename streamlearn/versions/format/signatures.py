"""Signatures: the Ed25519 keys whose manifests are trusted. It reads key files, and no store."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from streamlearn.config import read_bounded
from streamlearn.errors import ConfigError
from streamlearn.settings.versions import VersionSettings
from streamlearn.versions.store.defect import defective

if TYPE_CHECKING:
    from streamlearn.versions.format.manifest import Manifest

__all__ = ["Signatures"]

# Domain separation: a signature over other data cannot pass as one over a manifest.
_PREFIX = b"streamlearn manifest 1\n"
_TAIL = re.compile(rb',"signature":"([0-9a-f]{128})","check":"[0-9a-f]{64}"\}\Z')
_TAIL_BYTES_MAX = 256
_PUBLIC_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


class Signatures:
    """Signs manifests, and refuses those that no trusted key has signed. Without keys in the settings it does neither.

    Public keys are read at once, the private key at the first signature.

    Raises:
        ConfigError: The file of public keys cannot be read, or holds none.
    """

    def __init__(self, settings: VersionSettings) -> None:
        self._trusted_file, self._key_file = settings.trusted_keys, settings.signing_key
        self._trusted = _public_keys(Path(settings.trusted_keys)) if settings.trusted_keys else []

    def check_can_sign(self, before: Manifest | None = None) -> None:
        """Check, before anything of a version is written, that readers will accept it.

        If the version it is made from (`before`) is signed, it must be signed too, whatever the settings say.

        Raises:
            ConfigError: A signature is required, and the signing key is missing or not trusted.
        """
        is_signed = before is not None and before.signature is not UNSET
        if (self._trusted or is_signed) and not self._key_file:
            message = "this store's versions are signed, but versions.signing_key is not set"
            help = "run it where the trainer's private key is; nodes only read and need no key"
            raise ConfigError(message, help=help)
        if self._key_file and self._private.public_key() not in self._trusted and self._trusted:
            message = f"the public key of {self._key_file} is not in {self._trusted_file}"
            raise ConfigError(message, help="add it there, at the trainer and at all nodes, before signing with it")

    def signed(self, manifest: Manifest) -> Manifest:
        """Sign a manifest if a key is set; raises like `check_can_sign`."""
        self.check_can_sign()
        if not self._key_file:
            return manifest
        body = msgspec.json.encode(msgspec.structs.replace(manifest, check=UNSET, signature=UNSET))[: -len(b"}")]
        return msgspec.structs.replace(manifest, signature=self._private.sign(_PREFIX + body).hex())

    def check(self, data: bytes | memoryview, path: str) -> None:
        """Raise `VersionDefect` unless a trusted key signed the manifest, or no keys are trusted."""
        if not self._trusted:
            return
        from cryptography.exceptions import InvalidSignature

        raw = bytes(data)
        tail = _TAIL.search(raw, max(0, len(raw) - _TAIL_BYTES_MAX))
        if tail is None:
            raise defective(path, "unsigned", "it has no signature")
        for key in self._trusted:
            with suppress(InvalidSignature):
                key.verify(bytes.fromhex(tail[1].decode()), _PREFIX + raw[: tail.start()])
                return
        raise defective(path, "unsigned", f"its signature matches none of the {len(self._trusted)} trusted keys")

    @cached_property
    def _private(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data, key = read_bounded(Path(self._key_file), "the key that signs versions"), None
        with suppress(ValueError, TypeError):  # the library's error may contain parts of the key
            key = load_pem_private_key(data, None)
        if not isinstance(key, Ed25519PrivateKey):
            message = f"{self._key_file} must hold one Ed25519 private key in PEM, without a password"
            raise ConfigError(message, help="make one with `openssl genpkey -algorithm ed25519 -out FILE`")
        return key


def _public_keys(file: Path) -> list[Any]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    blocks, keys = _PUBLIC_KEY.findall(read_bounded(file, "the keys whose versions are trusted")), list[Any]()
    with suppress(ValueError):
        keys = [load_pem_public_key(block) for block in blocks]
    if not keys or not all(isinstance(key, Ed25519PublicKey) for key in keys):
        message = f"{file} holds {len(blocks)} public keys; one or more Ed25519 keys in PEM are required"
        raise ConfigError(message, help="write them with `openssl pkey -in KEY -pubout`, one after the other")
    return keys
