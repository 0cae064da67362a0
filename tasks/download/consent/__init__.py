"""Consent signals of a site: what it says about the use of its pages for training, and which of it is honoured."""
