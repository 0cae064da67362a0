"""Fetching pages: polite, bounded, and never from an address that is not public."""

from tasks.download.settings import DownloadSettings
from tasks.download.step import download

__all__ = ["DownloadSettings", "download"]
