"""How each step of the recipe is done: plain functions first, the Prefect task last."""
