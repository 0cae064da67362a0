"""Refuse retired words in identifiers, docstrings, comments, messages and docs.

    python .ci/check_words.py [PATH…]

Each rule has the word to use and the reason; CONTRIBUTING.md has the glossary. Exit code 1 with one line for each hit:
`path:line: word: use …, because …`. A line that needs a word as it stands ends with `retired-word: ok`.
"""

import functools
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

# word (regular expression over one lower-case word) -> what to write, and why the word was retired
PROSE = {
    "told|tells?|telling": ("log, report, pass or name", "a program logs or reports; `told` hides which of them"),
    "witness(es)?": ("crash reporter", "says what the process does"),
    "manners": ("shared rate limit", "the field's term"),
    "seats?": ("process environment", "rank, world size and address of a process"),
    "heeds?|heeded|heeding": ("respect, obey or take into account", "archaic"),
    "worn": ("grown, recycled", "a worker grows in memory; it does not wear"),
    "mend(s|ed|ing)?": ("repair or fix", "archaic in technical English"),
    "lanes?": ("queue of a host, packing task", "metaphor"),
    "mischief|mischievous": ("adversarial, malformed", "metaphor"),
    "outlook": ("estimate", "metaphor"),
    "lifelines?": ("parent-death signal", "metaphor"),
    "whoever": ("any client, any process", "hides the subject"),
    "wish(es)?": ("request", "metaphor"),
    "yonder|herein|thereof|whereof|henceforth": ("plain words", "archaic"),
}
# parts of identifiers: `find_seat` and `FindSeat` have the parts find, seat
NAMES = {
    **PROSE,
    "judge[sd]?|judging": ("check, classify or score", "five meanings in this repository"),
    "offer(s|ed)?": ("settings flow", "says nothing of Prefect's Flow"),
    "house": ("server", "metaphor"),
}
PATHS = ("benchmarks", "deployments", "docs", "flows", "gpt2train", "tasks", "tests", "README.md", "SECURITY.md")
MARK = "retired-word: ok"
SKIPPED = ("CHANGELOG.md", "CONTRIBUTING.md", ".ci/check_words.py", "requirements")
SUFFIXES = (".py", ".md", ".toml", ".yaml", ".yml", ".html", ".js")
PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
WORD = re.compile(r"[A-Za-z]+")


def check_text(text: str, names: bool = False) -> list[str]:
    """Hits among the words of a text, or the parts of a name, each as a message."""
    return [f"{word}: {hit}" for word in WORD.findall(text) for hit in hits_of(word.lower(), names)]


@functools.cache
def hits_of(word: str, names: bool) -> list[str]:
    """Messages about a word; there are 20,000 different ones among a million."""
    rules = NAMES if names else PROSE
    return [f"use {use}; {reason}" for pattern, (use, reason) in rules.items() if re.fullmatch(pattern, word)]


def check_python(source: str) -> list[tuple[int, str]]:
    """Line and message of each hit in a module: names by their parts, strings and comments by their words."""
    hits: list[tuple[int, str]] = []
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        attribute, before = before == ".", token.string
        if attribute and token.string == "tell":  # of files
            continue
        if token.type == tokenize.NAME:
            found = check_text(" ".join(PARTS.findall(token.string)), names=True)
            hits += [(token.start[0], f"{message} (in `{token.string}`)") for message in found]
        elif token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            for number, line in enumerate(token.string.split("\n")):
                hits += [(token.start[0] + number, message) for message in check_text(line)]
    return hits


def check_file(path: Path) -> list[str]:
    """Hits in a file, as lines `path:line: message`."""
    source = path.read_text(encoding="utf-8")
    lines = source.split("\n")
    if path.suffix == ".py":
        hits = check_python(source)
    else:
        hits = [(number, hit) for number, line in enumerate(lines, 1) for hit in check_text(line)]
    return [f"{path}:{number}: {hit}" for number, hit in sorted(set(hits)) if MARK not in lines[number - 1]]


def main() -> int:
    """Check what git tracks below the given paths, else below `PATHS`; 1 if there is a hit."""
    listed = subprocess.run(["git", "ls-files", *(sys.argv[1:] or PATHS)], check=True, capture_output=True, text=True)
    names = listed.stdout.splitlines()
    paths = [Path(name) for name in names if name.endswith(SUFFIXES) and not name.startswith(SKIPPED)]
    hits = [hit for path in paths if path.is_file() for hit in check_file(path)]
    print("\n".join(hits), end="\n" if hits else "")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
