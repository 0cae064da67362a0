"""Files of the labelling page."""
