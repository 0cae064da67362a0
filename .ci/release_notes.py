"""Print the part of CHANGELOG.md of a release, if its tag has the version of the package: `release_notes.py v0.1.0`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def release_notes(tag: str, root: Path = ROOT) -> str:
    """Return the part of the changelog for the version that a tag names.

    Raises:
        SystemExit: the package has another version, or the changelog has no part with its day.
    """
    [version] = re.findall(r'^__version__ = "(.+)"$', (root / "gpt2train/__init__.py").read_text(), re.M)
    if tag != f"v{version}":
        sys.exit(
            f"error: tag {tag}, but gpt2train/__init__.py has {version}; raise the version first, or tag v{version}"
        )
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n"
    found = re.search(rf"{heading}(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M | re.S)
    if not found:
        sys.exit(f"error: CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)'; write the day of the release there")
    return found[1].strip()


if __name__ == "__main__":
    print(release_notes(*sys.argv[1:]))
