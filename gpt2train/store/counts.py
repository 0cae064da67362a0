"""Numbers with a noun, in the singular for one: `1 page`, `2,000 pages`."""

_PLURALS = {"corpus": "corpora"}


def count_of(number: int, noun: str) -> str:
    """Format a number with a noun, given in the singular; the last word of several becomes the plural."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the regular plural of an English noun, and those of `_PLURALS`."""
    *first, last = noun.split(" ")
    if last in _PLURALS:
        found = _PLURALS[last]
    elif last.endswith(("s", "x", "ch", "sh")):
        found = f"{last}es"
    elif last.endswith("y") and last[-2:-1] not in tuple("aeiou"):
        found = f"{last[:-1]}ies"
    else:
        found = f"{last}s"
    return " ".join([*first, found])
