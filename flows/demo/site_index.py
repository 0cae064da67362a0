"""Index of the demo site: its hosts, its pages, and its URL list with the defects of a real list.

The list depends only on the Python version and the installed packages. It is made without importing any module: only
the files of the modules are searched.
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
MIRROR = f"mirror.{DOMAIN}"  # byte-identical copies of some pages of the library
JOURNAL = f"journal.{DOMAIN}"  # everything else: prose in other languages, and pages that misbehave

HERE = Path(__file__).parent
# Second names of listed modules: near duplicates that differ in their heading.
ALIASES = ("os.path", "collections.abc", "sre_parse", "sre_compile", "xml.etree.cElementTree")
MIRRORED_PAGES = 24
# Modules whose pages appear only in the journal, with mojibake in their punctuation.
MOJIBAKE = ("cmd", "fileinput", "sched", "shlex", "textwrap")
LANGUAGES = ("de", "es", "fr", "it", "nl")
SHORT_PAGES = {
    "short-1": "This page will be written next week.",
    "short-2": "Nothing was found here. Please use the search form, or go back to the front page.",
    "short-3": "Thank you for your message. We answer as soon as we can, mostly on the same day.",
}

BAD_URLS = (
    # Blocklisted sites; files that are not pages; malformed URLs; one that is too short.
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
DUPLICATE_URLS = (
    f"http://{LIBRARY}/json.html",
    f"HTTP://{LIBRARY.title()}/json.html",
    f"http://{LIBRARY}:80/argparse.html",
    f"http://{LIBRARY}/argparse.html#argumentparser",
)
JOURNAL_PATHS = (
    *(f"essays/{language}.html" for language in LANGUAGES),
    *(f"typeset/{name}.html" for name in MOJIBAKE),
    *(f"{name}.html" for name in SHORT_PAGES),
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
    """Return the modules of `modules.txt` that are installed, in its order, and the aliases."""
    lines = (HERE / "modules.txt").read_text("utf-8").splitlines()
    present = [name for line in lines if not line.startswith("#") for name in line.split() if is_present(name)]
    return tuple(dict.fromkeys((*present, *(name for name in ALIASES if name == "os.path" or is_present(name)))))


def library_modules() -> list[str]:
    """Return the modules on the host of the standard library."""
    return [name for name in listed_modules() if is_standard(name) and name not in MOJIBAKE]


def package_modules() -> list[str]:
    """Return the modules on the host of the installed packages."""
    return [name for name in listed_modules() if not is_standard(name)]


def mirrored_modules() -> list[str]:
    """Return the modules on the mirror."""
    modules = library_modules()
    return modules[:: max(1, len(modules) // MIRRORED_PAGES)]


def topics() -> list[str]:
    """Return the topics of the language reference, sorted."""
    return sorted(pydoc_data.topics.topics)


def url_list() -> str:
    """Return the URL list, one URL per line."""
    plain = [
        *(f"http://{LIBRARY}/{name}.html" for name in library_modules()),
        *(f"http://{REFERENCE}/topics/{name}.html" for name in topics()),
        *(f"http://{MIRROR}/{name}.html" for name in mirrored_modules()),
    ]
    # The packages come last, so that the server has time to import them.
    good = [*spread(plain), *spread([f"http://{PACKAGES}/{name}.html" for name in package_modules()])]
    other = [*BAD_URLS, *DUPLICATE_URLS, *(f"http://{JOURNAL}/{path}" for path in JOURNAL_PATHS)]
    return "# The demo's URLs, made for this installation\n" + "\n".join(interleave(good, other)) + "\n"


def spread(urls: Sequence[str], stride: int = 7) -> list[str]:
    """Reorder URLs with a stride, so that each shard of the list holds pages of every kind."""
    return [url for start in range(stride) for url in urls[start::stride]]


def interleave(many: Sequence[str], few: Sequence[str]) -> Iterator[str]:
    """Insert the items of `few` at equal distances into `many`."""
    step = max(1, len(many) // (len(few) + 1))
    rest = iter(few)
    for number, item in enumerate(many, start=1):
        yield item
        if number % step == 0 and (extra := next(rest, None)) is not None:
            yield extra
    yield from rest


def is_standard(name: str) -> bool:
    """Return True if a module belongs to the standard library."""
    return name.partition(".")[0] in sys.stdlib_module_names


def is_present(name: str) -> bool:
    """Return True if a module can be found; imports neither the module nor its package."""
    first, *rest = name.split(".")
    spec = importlib.util.find_spec(first)  # a top-level name: nothing is imported
    full = first
    for part in rest:
        full = f"{full}.{part}"
        finders = [pkgutil.get_importer(path) for path in (spec and spec.submodule_search_locations) or ()]
        found = [finder.find_spec(full) for finder in finders if finder is not None]
        spec = next((candidate for candidate in found if candidate is not None), None)
    return spec is not None
