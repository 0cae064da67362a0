"""Post-processors of `tokenizers`, in the form in which a `tokenizer.json` stores them."""

from typing import Any


def ids_before_text(processor: dict[str, Any] | None) -> list[int]:
    """Return the ids that a post-processor puts before a single text."""
    if processor is None:
        return []
    match processor["type"]:
        case "TemplateProcessing":
            found: list[int] = []
            for piece in processor["single"]:
                if "Sequence" in piece:
                    break
                found += processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            return found
        case "BertProcessing" | "RobertaProcessing":
            return [processor["cls"][1]]
        case "Sequence":  # each one takes the result of the one before
            return [number for inner in reversed(processor["processors"]) for number in ids_before_text(inner)]
    return []
