"""gpt2train: the training engine. Knows torch; knows neither Prefect nor the network."""

import os
import re
import signal
import sys
from typing import Any

__version__ = "0.1.0"


def _end_at_once(*_: Any) -> None:
    """End this process, which has no work to lose yet."""
    os.write(2, b"error: interrupted\n")
    os._exit(130)


def begin_imports() -> None:
    """Let Ctrl-C end this process at once, unless it is ignored, as in the background, or handled otherwise.

    The imports of a command take up to 3 s. A KeyboardInterrupt there shows a traceback, or is lost: pydantic converts
    it to another error, and Prefect goes on.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)


def end_imports() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, since the command begins to work."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# `-m` is the name of the program while Python imports the package of its module, which may be a user's.
_is_module = sys.argv[:1] == ["-m"] and any(re.match(r"(-m)?gpt2train(\.|$)", word) for word in sys.orig_argv)
if _is_module or "".join(sys.argv[:1]).endswith(("/gpt2train", "gpt2train.exe")):
    begin_imports()
