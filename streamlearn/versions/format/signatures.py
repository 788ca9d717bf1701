"""Signatures: which keys may write versions, by Ed25519 over their manifests. It reads key files, and no store."""

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

# So that nothing else that a key may ever sign is taken for a manifest.
_PREFIX = b"streamlearn manifest 1\n"
_TAIL = re.compile(rb',"signature":"([0-9a-f]{128})","check":"[0-9a-f]{64}"\}\Z')
_TAIL_BYTES_MAX = 256
_PUBLIC_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


class Signatures:
    """Signs manifests, and refuses those that no trusted key has signed. Without settings it does neither.

    Args:
        settings: Where the keys are. Public keys are read at once, the private one when something is signed.

    Raises:
        ConfigError: A file of public keys cannot be read, or holds none.
    """

    def __init__(self, settings: VersionSettings) -> None:
        self._trusted_file, self._key_file = settings.trusted_keys, settings.signing_key
        self._trusted = _public_keys(Path(settings.trusted_keys)) if settings.trusted_keys else []

    def check_can_sign(self, before: Manifest | None = None) -> None:
        """Refuse to write a version that readers would refuse, before anything of it is written.

        Args:
            before: The version that it is made of. When that is signed, the new one must be, whatever the settings say.

        Raises:
            ConfigError: Readers want a signature, and there is no key to sign with, or not one that they trust.
        """
        is_signed = before is not None and before.signature is not UNSET
        if (self._trusted or is_signed) and not self._key_file:
            message = "this store's versions are signed, but versions.signing_key is not set"
            raise ConfigError(
                message, help="run it where the trainer's private key is; nodes only read and need no key"
            )
        if self._key_file and self._private.public_key() not in self._trusted and self._trusted:
            message = f"the public key of {self._key_file} is not in {self._trusted_file}"
            raise ConfigError(message, help="add it there, at the trainer and at all nodes, before signing with it")

    def signed(self, manifest: Manifest) -> Manifest:
        """A manifest with its signature, where there is a key; raises as `check_can_sign`."""
        self.check_can_sign()
        if not self._key_file:
            return manifest
        body = msgspec.json.encode(msgspec.structs.replace(manifest, check=UNSET, signature=UNSET))[: -len(b"}")]
        return msgspec.structs.replace(manifest, signature=self._private.sign(_PREFIX + body).hex())

    def check(self, data: bytes | memoryview, path: str) -> None:
        """Refuse the bytes of a manifest that no trusted key has signed; where no keys are given, none is refused.

        Raises:
            VersionDefect: It is `unsigned`.
        """
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
        with suppress(ValueError, TypeError):  # what is wrong with it may hold some of it
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
