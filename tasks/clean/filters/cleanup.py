"""The five tasks of Megatron-LM's `tools/openwebtext/cleanup_fix_dataset.py`.

There the first task that applied ended the work on a document, and `ftfy_fix_text` always applied, so that nothing
behind it ever ran. Here each task applies in turn, always in this order: remove_512, remove_256_javascript,
remove_512_non_english, ftfy_fix_text, general_cleaning.
"""

import re
from typing import Literal

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.found import Found

Task = Literal["remove_512", "remove_256_javascript", "remove_512_non_english", "ftfy_fix_text", "general_cleaning"]
FLAT = re.compile(r"  +|\b\n+ |\b\n+")  # runs of spaces, and line ends right behind a word


class CleanupSettings(Settings):
    """Tasks of Megatron's second cleaning."""

    tasks: tuple[Task, ...] = ()
    """Which of remove_512, remove_256_javascript, remove_512_non_english, ftfy_fix_text (done to every text anyway) and
    general_cleaning to do; they run in this order, however they are listed."""
    short: int = Field(512, ge=0)
    """remove_512: fewest characters."""
    short_javascript: int = Field(256, ge=0)
    """remove_256_javascript: fewest characters of a text that has the word JavaScript."""
    short_foreign: int = Field(512, ge=0)
    """remove_512_non_english: fewest characters of a text that is not English."""


def cleanup(text: str, language: str | None, settings: CleanupSettings) -> tuple[str, Found | None]:
    """The text as the tasks leave it, and why it goes if it goes.

    Reasons: `short_text`, `short_javascript`, `short_not_english`.
    """
    size, tasks = len(text), settings.tasks
    if "remove_512" in tasks and size < settings.short:
        return text, _short("short_text", size, settings.short)
    if "remove_256_javascript" in tasks and size < settings.short_javascript and "javascript" in text.lower():
        return text, _short("short_javascript", size, settings.short_javascript)
    if "remove_512_non_english" in tasks and size < settings.short_foreign and language != "en":
        return text, _short("short_not_english", size, settings.short_foreign)
    if "general_cleaning" in tasks:
        text = FLAT.sub(" ", text).strip()
    return text, None


def _short(reason: str, size: int, least: int) -> Found:
    return Found(reason, f"{size} characters, at least {least} expected")
