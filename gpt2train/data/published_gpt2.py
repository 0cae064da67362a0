"""The published files of GPT-2's tokenizer, verified by hash."""

import functools
import hashlib
import http.client
import urllib.request
from collections.abc import Mapping

from gpt2train.data.bpe_tables import MERGES, VOCAB, parse_tables, tokenizer_files
from gpt2train.errors import UserError

PUBLISHED_AT = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
# File name -> (file name of OpenAI, SHA-256).
PUBLISHED = {
    VOCAB: ("encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
    MERGES: ("vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
}
TIMEOUT = 30.0  # seconds without a byte; the two files are 1.5 MB together
MAX_BYTES = 1 << 24  # of a downloaded file


def published_files(
    given: Mapping[str, bytes] | None, remedy: str, source: str = PUBLISHED_AT
) -> tuple[dict[str, bytes], int]:
    """Return the published files of GPT-2.

    Args:
        given: files of a tokenizer by name; None: download them.
        remedy: what the user can do if they are missing or other files.
        source: place of the given files, for error messages.

    Returns:
        Content of each file by name, and the number of tokens.

    Raises:
        UserError: the files are missing, cannot be downloaded, or differ from the published ones.
    """
    content = {}
    for name, (published, digest) in PUBLISHED.items():
        if given is None:
            location = f"{PUBLISHED_AT}/{published}"
            data = _download(location, remedy)
        elif name in given:
            location, data = f"{source}/{name}", given[name]
        else:
            raise UserError(f"{source} contains neither {name} nor {published}; {remedy}")
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise UserError(
                f"{location} is not GPT-2's published {name} (SHA-256 {found[:12]}…, {digest[:12]}… expected); {remedy}"
            )
        content[name] = data
    files, size = _files(content[VOCAB], content[MERGES])
    return {**files, **content}, size


@functools.lru_cache(1)  # a run reads them for its checks and for the step
def _files(vocab: bytes, merges: bytes) -> tuple[dict[str, bytes], int]:
    tables = parse_tables(vocab.decode(), merges.decode())
    return tokenizer_files(*tables), len(tables[0])


def _download(url: str, remedy: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            return response.read(MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"cannot download {url}: {getattr(error, 'reason', error)}; {remedy}") from error
