"""Web pages: bytes to text (`decode`), what is not worth it (`early`, `flags`), the main text (`page`)."""

from tasks.html.decode import codec_name, decode, storable

__all__ = ["codec_name", "decode", "storable"]
