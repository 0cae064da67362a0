"""URLs a second of the blacklist on one core: the whole step, from a file to shards, against the recipe it follows.

The peer does what Megatron-LM's `blacklist_urls.py` does, by its own means: `tldextract`, a regular expression, a set
of strings; all in memory, nothing written. `python -m benchmarks.blacklist [--urls 1000000]`
"""

import argparse
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import tldextract

from benchmarks.pairs import compare, machine
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.blacklist.rules import EXTENSIONS, blocked_names
from tasks.blacklist.settings import BlacklistSettings
from tasks.blacklist.step import blacklist
from tasks.core.runner import Runner
from tasks.core.url_lists import find_url_lists

FORM = re.compile(r"^(?:http)s?://(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,}(?::\d+)?(?:/?|[/?]\S+)$", re.I)
SUFFIXES = ("com", "org", "net", "co.uk", "de", "blogspot.com")


class OneCore(Runner):
    """Runs every batch in this process, one at a time."""

    def batches(self, *args: Any, **options: Any) -> list[Outcome]:
        return super().batches(*args, **{**options, "where": "thread", "at_once": 1})


def write_list(path: Path, count: int) -> None:
    """A list with the dirt of real ones: a tenth dropped by name, ending or repetition."""
    draw = random.Random(0)
    names = sorted(blocked_names())
    urls: list[str] = []
    for number in range(count):
        host = f"site{min(int(draw.paretovariate(0.6)), 10**6)}.{draw.choice(SUFFIXES)}"
        match draw.random():
            case chance if chance < 0.06:
                urls.append(f"http://www.{draw.choice(names)}.com/{number}")
            case chance if chance < 0.08:
                urls.append(f"http://{host}/files/{number}.pdf")
            case chance if chance < 0.10 and urls:
                urls.append(draw.choice(urls))
            case _:
                urls.append(f"http://www.{host}/articles/{draw.randrange(10**6)}/{number}.html?page={number % 7}")
    path.write_text("\n".join(urls) + "\n")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--urls", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)  # the list that it carries; no network
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "list.txt"
        write_list(path, given.urls)
        kept: dict[str, int] = {}
        cpu: dict[str, float] = {}

        def ours() -> None:
            with tempfile.TemporaryDirectory() as out, OneCore(1) as runner:
                began = time.process_time()
                manifest = blacklist(Folder(out), find_url_lists([str(path)]), BlacklistSettings(), runner)
                cpu["ours"] = time.process_time() - began
                kept["ours"] = manifest.outcome.kept

        def recipe() -> None:
            names, seen = blocked_names(), set[str]()
            began = time.process_time()
            with path.open() as file:
                for line in file:
                    url = line.strip()
                    if (
                        extract(url).domain in names
                        or url.split("?")[0].lower().endswith(EXTENSIONS)
                        or len(url) <= 8
                        or not FORM.match(url)
                        or url in seen
                    ):
                        continue
                    seen.add(url)
            cpu["recipe"] = time.process_time() - began
            kept["recipe"] = len(seen)

        print(machine())
        compare(
            "URL lists, one core",
            "URLs",
            given.urls,
            {"gpt2train, file to shards": ours, "the recipe, in memory": recipe},
            given.rounds,
        )
        seconds = ", ".join(f"{name} {1e6 * used / given.urls:.1f}" for name, used in cpu.items())
        print(f"  CPU seconds a million URLs: {seconds}; kept: {kept}")


if __name__ == "__main__":
    main()
