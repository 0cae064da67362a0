"""What no manifest can know, from a file of the publisher: who publishes, and under which licence."""

import json
from pathlib import Path

from pydantic import Field

from gpt2train.errors import UserError
from gpt2train.settings import Settings, build, read_toml
from gpt2train.store.folder import Folder

STATED = "passport/about.json"  # in the output folder


class About(Settings):
    """Publisher and purpose; what is empty is shown as not stated."""

    provider: str = ""
    """Name of the publisher."""
    contact: str = ""
    """Contact details of the publisher."""
    representative: str = ""
    """Authorised representative in the European Union."""
    model: str = ""
    """Name and version of the model."""
    published: str = ""
    """Date on which the model is placed on the market."""
    license: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=64)
    """Licence of the collection, as hubs write it (odc-by, cc-by-4.0)."""
    small_enterprise: bool = False
    """The publisher is a small or medium-sized enterprise: its list of domains may be shorter."""
    datasets: tuple[str, ...] = ()
    """Publicly available datasets that the given files were taken from, with links."""
    licensed_data: str = ""
    """Data licensed from rightholders."""
    user_data: str = ""
    """Data from users of the publisher's services."""
    synthetic_data: str = ""
    """Data made by AI models."""
    copyright_measures: str = ""
    """Further measures that respect reservations of rights."""
    illegal_content: str = ""
    """Further measures that remove illegal content."""
    other: str = ""
    """Further information."""


def read_about(path: Path | None) -> About | None:
    """Read the file of the publisher, if there is one.

    Raises:
        UserError: the file is missing or has an unknown or wrong entry.
    """
    return None if path is None else build(About, read_toml(path), source=str(path))


def stated_about(root: Folder) -> About:
    """Return what the publisher stated when the passport of an output folder was last written; empty if nothing.

    Raises:
        UserError: the file was edited and has an unknown or wrong entry.
    """
    if root.size(STATED) is None:
        return About()
    source = root.location(STATED)
    try:
        stated = json.loads(root.read_bytes(STATED))
    except ValueError as error:
        raise UserError(f"{source} is no JSON ({error}); remove it, and give --about again") from error
    return build(About, stated, source=source)
