"""Quality of documents from examples: votes of a person, a linear model of them, and the page that collects them."""
