"""Signature of a folder by a key of one's own, in the format of OpenSSF Model Signing (package model-signing)."""

from pathlib import Path
from typing import Any

from gpt2train.errors import RunError, UserError
from gpt2train.extras import needs_extra

SIGNATURE = "model.sig"


def sign(folder: Path, key: Path) -> Path:
    """Sign all files of a folder with a private key (PEM, elliptic curve); return the signature's file in it.

    Raises:
        UserError: the package is missing, or the key cannot be read.
    """
    target = folder / SIGNATURE
    library, hashing = _library(target)
    if not key.is_file():
        raise UserError(f"--sign {key}: no such file; make a key by openssl ecparam -name prime256v1 -genkey -noout")
    try:
        config = library.signing.Config().use_elliptic_key_signer(private_key=key)
        config.set_hashing_config(hashing).sign(folder, target)
    except (ValueError, TypeError, AttributeError) as error:  # the last for a key of another kind, such as RSA
        raise UserError(f"--sign {key} is no private key of an elliptic curve: {error}") from error
    return target


def check_signature(folder: Path, key: Path) -> None:
    """Check a folder's files against its signature and a public key.

    Raises:
        UserError: the package, the key or the signature is missing, or the key is none of an elliptic curve.
        RunError: a file was changed, added or removed, or another key signed it.
    """
    signature = folder / SIGNATURE
    library, hashing = _library(signature)
    for file, what in ((key, "public key"), (signature, "signature")):
        if not file.is_file():
            raise UserError(f"{file}: no such {what}")
    try:
        config = library.verifying.Config().use_elliptic_key_verifier(public_key=key)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"--check {key} is no public key of an elliptic curve: {error}") from error
    try:
        config.set_hashing_config(hashing).verify(folder, signature)
    except Exception as error:  # the library raises ValueError and cryptography's own errors
        raise RunError(f"{folder} does not have the signed contents: {str(error) or type(error).__name__}") from error


def _library(signature: Path) -> tuple[Any, Any]:
    """Return the library, and its configuration of the hashes of all files but the signature."""
    try:
        import model_signing
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        raise needs_extra("a signature", "sign") from error
    hashing = model_signing.hashing.Config().set_ignored_paths(paths=[signature], ignore_git_paths=False)
    return model_signing, hashing
