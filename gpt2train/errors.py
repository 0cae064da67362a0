"""The errors a person sees; each is one line that names the thing, the place and the remedy."""

import re

# An address may carry a password before its host, or a signature in its query: neither belongs into a log.
_PASSWORD = re.compile(r"(?<=://)[^\s/@'\"]+@")
_QUERY = re.compile(r"(://[^\s?'\"]+)\?[^\s'\"]*")


def redact(text: str) -> str:
    """The text with the user part and the query of each address in it replaced by an ellipsis."""
    return _QUERY.sub(r"\1?…", _PASSWORD.sub("…@", text))


class _Told(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class UserError(_Told):
    """A mistake of the user: a wrong setting, a missing file. The command ends with exit code 2."""


class RunError(_Told):
    """A failure while running: a full disk, a damaged file. The command ends with exit code 1."""


class TransientError(RunError):
    """A failure that may pass by itself: a rank that died or hung, a lost machine. Worth trying again, from what is
    committed; as the last word of a command it ends with exit code 1."""
