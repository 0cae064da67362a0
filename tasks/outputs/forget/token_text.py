"""Text of tokens as a removal searches it, and the forms that texts take on their way through a tokenizer.

Tokenizers of whole words and pieces do not give a text back as it was: letters without a token are lost, accents
dropped, syllables decomposed. The words of a page are therefore searched in that form too.
"""

from collections.abc import Sequence

from gpt2train.data.tokenizer import PRIMARY, UNKNOWN_TOKENS, Tokenizer, encode_ordinary, kind_of
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from tasks.core.tokenizer_file import read_tokenizer
from tasks.decontaminate.ngrams import words_of

FOLDER = "tokenizer"


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens; a mark of an unknown word is none of its words."""
    text = tokenizer.decode(ids, skip_special_tokens=False)
    for mark in UNKNOWN_TOKENS:
        text = text.replace(mark, " ")
    return text


def tokenizer_beside(root: Folder, prefix: str) -> Tokenizer | None:
    """Open the tokenizer in the folder `tokenizer` beside the tokens, or beside a folder that holds them."""
    parts = prefix.split("/")[:-1]
    for count in range(len(parts), -1, -1):
        folder = root / "/".join([*parts[:count], FOLDER])
        name = next((name for name in PRIMARY if folder.size(name) is not None), None)
        if name is not None:
            return read_tokenizer(folder, name)
    return None


def forms_in_tokens(root: Folder, texts: Sequence[str]) -> list[str]:
    """Return the texts as the tokenizers of an output give them back, as far as their words are others."""
    found: dict[str, None] = {}
    for name in [name for name in root.sizes() if name.split("/")[-2:-1] == [FOLDER]]:
        folder, _, file = name.rpartition("/")
        if file not in PRIMARY:
            continue
        try:
            tokenizer = read_tokenizer(root / folder, file)
        except UserError:
            continue  # damaged: tokens that need it cannot be read, which the scan reports
        if kind_of(tokenizer) == "byte-level BPE" and getattr(tokenizer, "normalizer", None) is None:
            continue  # gives any text back
        for text in texts:
            form = text_of(tokenizer, encode_ordinary(tokenizer, [text])[0])
            if words_of(form) != words_of(text):
                found[form] = None
    return [*found]
