"""Settings of the report."""

from pydantic import PositiveInt

from gpt2train.settings import Settings


class ReportSettings(Settings):
    """Contents of the report."""

    samples: PositiveInt = 3
    """Rejected rows shown per reason and step."""
