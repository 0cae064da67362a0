"""Seeded global shuffle of the documents."""
