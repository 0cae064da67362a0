"""Planted good and bad texts, votes on them, and the output of a cleaning that kept and rejected some."""

import random
from pathlib import Path

from gpt2train.quality.votes import Vote
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, Outcome
from tasks.clean.step import CleanSettings, clean
from tasks.core.shards import DOCUMENT, write_rows
from tasks.core.step import Step
from tests.tasks.corpus import Inline, pieces_of_novels

MENU = ("home", "shop", "contact", "log in", "cart (0)", "share", "next", "archive", "terms", "tags", "more »", "rss")


def planted(open_data: Path, count: int) -> list[tuple[str, bool]]:
    """`count` pieces of novels that are good, and as many bad texts: the words of a piece shuffled, or a menu in it."""
    draw = random.Random(0)
    found = []
    for number, piece in enumerate(pieces_of_novels(open_data, 2 * count)):
        words = piece.split()
        if number % 2:
            found.append((" ".join(words) + ".", True))
        elif number % 4:
            draw.shuffle(words)
            found.append((" ".join(words) + ".", False))
        else:
            menu = "\n".join(draw.choice(MENU) for _ in range(60))
            found.append((menu + "\n" + " ".join(words[:150]) + ".", False))
    return found


def votes_on(texts: list[tuple[str, bool]], mistakes: int = 0) -> list[Vote]:
    """One vote on each text, as the page writes them; so many of them, evenly spaced, are mistakes."""
    wrong = {number * len(texts) // mistakes for number in range(mistakes)}
    texts = [(text, is_good != (number in wrong)) for number, (text, is_good) in enumerate(texts)]
    return [
        Vote(f"{number:04d}", f"http://a.example/{number}", None, "good" if is_good else "bad", text)
        for number, (text, is_good) in enumerate(texts)
    ]


def cleaned(root: Path, texts: list[str]) -> Path:
    folder = Folder(root)
    step = Step(folder, "extract", version=1, parameters={}, inputs={}, folder="documents")
    rows = [{"id": f"{n:04d}", "url": f"http://a.example/{n}", "text": text} for n, text in enumerate(texts)]
    made = step.commit(Outcome(outputs=(write_rows(step.folder, "part-00000.parquet", rows, DOCUMENT),)))
    settings = build(CleanSettings, {"language": {"keep": ["any"]}, "filters": {"fineweb": {"enabled": True}}})
    with Inline(workers=1) as runner:
        clean(folder, made, settings, runner)
    return root
