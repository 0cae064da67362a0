"""A pickle that runs code when it is loaded."""

import os
from pathlib import Path
from typing import Any


class CodeOnLoad:
    """Makes the folder `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)
