"""WordPiece from a `vocab.txt`, as BERT's tokenizer encodes (Devlin et al. 2018)."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

VOCAB_TXT = "vocab.txt"
UNKNOWN = "[UNK]"
SPECIAL = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")


def build_wordpiece(
    text: str, lower: bool | None = None, strip_accents: bool | None = None, split_chinese: bool = True
) -> Tokenizer:
    """Build BERT's tokenizer from its vocabulary.

    Args:
        text: content of `vocab.txt`, one token per line; of equal lines the last one counts.
        lower: convert texts to lower case and remove accents. By default it does if no token of two or more letters,
            besides those in brackets, has an upper-case one.
        strip_accents: remove accents; by default as `lower`.
        split_chinese: make each Chinese character a word.

    Raises:
        ValueError: the vocabulary lacks `[UNK]` or `[SEP]`.
    """
    lines = text.removesuffix("\n").split("\n")
    vocab = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
    for token in (UNKNOWN, "[SEP]"):
        if token not in vocab:
            raise ValueError(f"{VOCAB_TXT} has no {token} token")
    if lower is None:
        lower = not any(len(token) > 1 and token != token.lower() for token in vocab if token[:1] not in ("[", "<"))
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=UNKNOWN, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_chinese, strip_accents=strip_accents, lowercase=lower
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL if token in vocab]
    )
    return tokenizer
