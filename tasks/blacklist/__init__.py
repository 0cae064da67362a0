"""URLs that are not worth a request are dropped before any is made: one reason each, the order of the lists kept."""

from tasks.blacklist.settings import BlacklistSettings
from tasks.blacklist.step import URLS, blacklist

__all__ = ["URLS", "BlacklistSettings", "blacklist"]
