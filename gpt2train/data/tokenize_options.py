"""Options of `gpt2train data tokenize`, apart from its code so that `--help` does not load the tokenizers."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


@dataclass(frozen=True)
class TokenizeOptions:
    """How texts are found and encoded."""

    json_key: str = "text"
    """Key of the text in JSON lines, column of the texts in Parquet; metadata.text is the key in a nested object."""
    tokenizer: str = "gpt2"
    """gpt2, which is downloaded, or a folder with tokenizer.json, vocab.json and merges.txt, tokenizer.model or
    vocab.txt, or one of these files; hf://ORG/NAME is that of a model of the hub."""
    append_eod: Annotated[bool, Parameter(negative=())] = False
    """Append the end-of-text token to each document."""
    prepend_bos: Annotated[bool, Parameter(negative=())] = False
    """Begin each document with what the tokenizer's template puts before a text, as `<s>` of Llama 2."""
    separator: str = ""
    """String between the documents of a .txt file, such as '<|endoftext|>'; without one a file is a document."""
    workers: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Processes, by default one per core; the bytes do not depend on it."""
