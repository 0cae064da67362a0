"""Keep the evaluation sets out of the training text: their n-grams are found, cut out, and counted after."""

from tasks.decontaminate.step import DecontaminateSettings, decontaminate

__all__ = ["DecontaminateSettings", "decontaminate"]
