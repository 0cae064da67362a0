"""Blacklist step: drops unwanted URLs before any request, each with one reason, and keeps the order of the lists."""
