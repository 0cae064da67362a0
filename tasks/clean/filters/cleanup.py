"""The five tasks of Megatron-LM's `tools/openwebtext/cleanup_fix_dataset.py`.

There the first task that applies to a document is the last one, and `ftfy_fix_text` always applies, so that later tasks
never run. Here all listed tasks run, always in this order: remove_512, remove_256_javascript, remove_512_non_english,
ftfy_fix_text, general_cleaning.
"""

import re
from typing import Literal

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.registry import Replacement, TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection

Task = Literal["remove_512", "remove_256_javascript", "remove_512_non_english", "ftfy_fix_text", "general_cleaning"]
EXTRA_SPACE = re.compile(r"  +|\b\n+ |\b\n+")  # runs of spaces, and line ends directly after a word


class CleanupSettings(Settings):
    """Cleanup tasks of Megatron-LM."""

    tasks: tuple[Task, ...] = ()
    """Tasks to run: remove_512, remove_256_javascript, remove_512_non_english, ftfy_fix_text (always done) and
    general_cleaning. They run in this order, however they are listed."""
    short: int = Field(512, ge=0)
    """remove_512: minimum characters of a text."""
    short_javascript: int = Field(256, ge=0)
    """remove_256_javascript: minimum characters of a text that contains the word JavaScript."""
    short_foreign: int = Field(512, ge=0)
    """remove_512_non_english: minimum characters of a text that is not English."""

    @property
    def enabled(self) -> bool:
        """True if there is a task to run."""
        return bool(self.tasks)


def cleanup(text: str, settings: CleanupSettings, language: str | None) -> Rejection | Replacement | None:
    """Text as changed by the tasks, or its rejection if it does not pass.

    Reasons: `short_text`, `short_javascript`, `short_not_english`.
    """
    size, tasks = len(text), settings.tasks
    if "remove_512" in tasks and size < settings.short:
        return _short("short_text", size, settings.short)
    if "remove_256_javascript" in tasks and size < settings.short_javascript and "javascript" in text.lower():
        return _short("short_javascript", size, settings.short_javascript)
    if "remove_512_non_english" in tasks and size < settings.short_foreign and language != "en":
        return _short("short_not_english", size, settings.short_foreign)
    if "general_cleaning" in tasks:
        return Replacement(EXTRA_SPACE.sub(" ", text).strip())
    return None


def _short(reason: str, size: int, least: int) -> Rejection:
    return Rejection(reason, f"{size} characters, at least {least} expected")


register_filter(
    "cleanup",
    TextFilter(CleanupSettings, cleanup, order=100, uses_language=lambda own: "remove_512_non_english" in own.tasks),
)
