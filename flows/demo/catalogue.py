"""What the demo site offers: its hosts, its pages, and the list of URLs with the dirt that a real list has.

The list depends on the Python version and the installed packages alone. It is made without importing any of the
modules: their files are looked for, no more.
"""

import functools
import importlib.util
import pkgutil
import pydoc_data.topics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

DOMAIN = "pydoc.example"  # .example is reserved: no such site can exist
LIBRARY = f"library.{DOMAIN}"  # the standard library
PACKAGES = f"packages.{DOMAIN}"  # installed packages
REFERENCE = f"reference.{DOMAIN}"  # topics of the language reference
MIRROR = f"mirror.{DOMAIN}"  # some pages of the library once more, byte for byte
JOURNAL = f"journal.{DOMAIN}"  # everything else: prose in other languages, and pages that misbehave

HERE = Path(__file__).parent
# Other names of modules that are listed too: near duplicates that differ in their heading.
ALIASES = ("os.path", "collections.abc", "sre_parse", "sre_compile", "xml.etree.cElementTree")
MIRRORED = 24
# Modules whose pages appear in the journal alone, with their punctuation damaged.
MOJIBAKE = ("cmd", "fileinput", "sched", "shlex", "textwrap")
LANGUAGES = ("de", "es", "fr", "it", "nl")
SHORT = {
    "short-1": "This page will be written next week.",
    "short-2": "Nothing was found here. Please use the search form, or go back to the front page.",
    "short-3": "Thank you for your message. We answer as soon as we can, mostly on the same day.",
}

BAD = (
    # Sites that are no documents, by name; files that are no pages; what is no URL; what is too short for one.
    "http://www.youtube.example/watch?v=jNQXAC9IVRw",
    "https://maps.google.example/maps?q=library",
    "http://i.imgur.example/a1b2c3",
    "http://someone.tumblr.example/post/1",
    f"http://{LIBRARY}/figures/memory-layout.pdf",
    f"http://{LIBRARY}/download/library.zip?mirror=2",
    f"http://{LIBRARY}/download/library.7z#latest",
    f"http://{PACKAGES}/logo.PNG",
    f"http:/{LIBRARY}/os.html",
    f"ftp://{LIBRARY}/os.html",
    f"{LIBRARY}/os.html",
    "http://two words.example/",
    f"http://{LIBRARY}:eighty/os.html",
    "http://x",
)
REPEATED = (
    f"http://{LIBRARY}/json.html",
    f"HTTP://{LIBRARY.title()}/json.html",
    f"http://{LIBRARY}:80/argparse.html",
    f"http://{LIBRARY}/argparse.html#argumentparser",
)
ODD = (
    *(f"essays/{language}.html" for language in LANGUAGES),
    *(f"typeset/{name}.html" for name in MOJIBAKE),
    *(f"{name}.html" for name in SHORT),
    "reading-notes.html",
    "missing.html",
    "flaky.html",
    "moved.html",
    "loop.html",
    "huge.html",
    "slow.html",
    "private/diary.html",
    "feed",
)


@functools.cache
def listed_modules() -> tuple[str, ...]:
    """The modules of `modules.txt` that are here, in its order, and the aliases."""
    lines = (HERE / "modules.txt").read_text("utf-8").split("\n")
    names = [line for line in lines if line and not line.startswith("#")]
    present = [name for name in names if is_present(name)]
    return tuple(dict.fromkeys((*present, *(name for name in ALIASES if name == "os.path" or is_present(name)))))


def library_modules() -> list[str]:
    """Pages of the standard library's host."""
    return [name for name in listed_modules() if is_standard(name) and name not in MOJIBAKE]


def package_modules() -> list[str]:
    """Pages of the packages' host."""
    return [name for name in listed_modules() if not is_standard(name)]


def mirrored_modules() -> list[str]:
    """Pages that the mirror holds."""
    modules = library_modules()
    return modules[:: max(1, len(modules) // MIRRORED)]


def topics() -> list[str]:
    """Topics of the language reference, sorted."""
    return sorted(pydoc_data.topics.topics)


def url_list() -> str:
    """The list of URLs, one a line."""
    plain = [
        *(f"http://{LIBRARY}/{name}.html" for name in library_modules()),
        *(f"http://{REFERENCE}/topics/{name}.html" for name in topics()),
        *(f"http://{MIRROR}/{name}.html" for name in mirrored_modules()),
    ]
    # The packages come last: by then the server has imported them beside its other work.
    good = [*spread(plain), *spread([f"http://{PACKAGES}/{name}.html" for name in package_modules()])]
    other = [*BAD, *REPEATED, *(f"http://{JOURNAL}/{path}" for path in ODD)]
    return "# The demo's URLs, made for this installation\n" + "\n".join(interleave(good, other)) + "\n"


def spread(urls: Sequence[str], stride: int = 7) -> list[str]:
    """Neighbours apart: every seventh, then the next ones. Shards of the list then hold pages of every kind."""
    return [url for start in range(stride) for url in urls[start::stride]]


def interleave(many: Sequence[str], few: Sequence[str]) -> Iterator[str]:
    """The few at equal distances among the many."""
    step = max(1, len(many) // (len(few) + 1))
    rest = iter(few)
    for number, item in enumerate(many, start=1):
        yield item
        if number % step == 0 and (extra := next(rest, None)) is not None:
            yield extra
    yield from rest


def is_standard(name: str) -> bool:
    """Whether a module belongs to the standard library."""
    return name.partition(".")[0] in sys.stdlib_module_names


def is_present(name: str) -> bool:
    """Whether a module can be found, without importing it or its package."""
    first, *rest = name.split(".")
    spec = importlib.util.find_spec(first)  # imports nothing: it has no package
    full = first
    for part in rest:
        full = f"{full}.{part}"
        finders = [pkgutil.get_importer(place) for place in (spec and spec.submodule_search_locations) or ()]
        found = [finder.find_spec(full) for finder in finders if finder is not None]
        spec = next((candidate for candidate in found if candidate is not None), None)
    return spec is not None
