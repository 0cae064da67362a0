"""Token files made elsewhere (Megatron-LM's `.bin/.idx`, raw `.bin`): their corpora, split, counts and tokenizer.

They are opened and counted before a training starts, and read where they are.
"""

from dataclasses import dataclass
from pathlib import Path

from gpt2train.config import Corpus
from gpt2train.config.data import split_weights
from gpt2train.data.document_split import PARTS
from gpt2train.data.raw_tokens import is_raw, plain_prefix, with_end
from gpt2train.data.sharded_dataset import MOCK, open_tokens, tokens_identity
from gpt2train.data.tokenizer import Tokenizer, end_of_text_id, load_tokenizer, tokenizer_hash, vocab_size
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.settings import build
from gpt2train.store.hub import TOKENIZER_FILES, local_copy

TOKENIZER = "tokenizer"  # folder beside token files, as `gpt2train data tokenize` writes it
MAX_TWO_BYTES = 2**16  # ids that a token of two bytes can have
GPT2_VOCAB = 50257  # of mock tokens by default


@dataclass(frozen=True)
class ReadyTokens:
    """Token files made elsewhere, and their tokenizer.

    Attributes:
        corpora: absolute prefixes of the files, with their weights.
        split: weights of train, valid and test documents, as in `data.split`; None: all documents are for training.
        valid: absolute prefix of the validation tokens; None: those of `split`.
        vocab: vocabulary size.
        tokenizer: folder or file of the tokenizer; None if it is not known.
        tokenizer_hash: hash of the tokenizer; None if it is not known.
        identities: identity of each corpus, with all its documents; that of `valid` is the last, if there is one.
        facts: numbers of documents and tokens of all corpora by part: `train_documents`, `train_tokens`, ….
    """

    corpora: tuple[Corpus, ...]
    split: str | None
    valid: str | None
    vocab: int
    tokenizer: Path | None
    tokenizer_hash: str | None
    identities: tuple[str, ...]
    facts: dict[str, int]

    @property
    def name(self) -> str:
        """Prefixes of the corpora, with their weights if there are several."""
        if len(self.corpora) == 1:
            return self.corpora[0].prefix
        return ", ".join(f"{corpus.weight:g} x {corpus.prefix}" for corpus in self.corpora)


def open_ready_tokens(
    tokens: str, split: str | None, tokenizer: str | None, vocab: int | None, valid: str | None = None
) -> ReadyTokens:
    """Open and count token files.

    Args:
        tokens: prefixes, see `parse_corpora`; or `mock`, tokens in no file, split 949,50,1 unless a split is given.
        split: weights of train, valid and test documents; None: all documents are for training.
        tokenizer: folder or file of the tokenizer; by default `tokenizer/` beside the files.
        vocab: vocabulary size, for files without a tokenizer; above that of a tokenizer, the model has rows that stand
            for no token.
        valid: prefix of the validation tokens, in place of `split`.

    Raises:
        UserError: a file is missing, damaged or of another format, there is neither a tokenizer nor its size, or two
            tokenizers differ.
    """
    corpora = parse_corpora(tokens)
    tokenizer = tokenizer and str(local_copy(tokenizer, TOKENIZER_FILES))
    if tokens == "mock" and not Path("mock.idx").exists():
        vocab = vocab or (vocab_size(load_tokenizer(tokenizer)) if tokenizer else GPT2_VOCAB)
        corpora, split = (Corpus(prefix=f"{MOCK}{vocab}"),), split or (None if valid else "949,50,1")
    validation = _one_prefix(valid) if valid is not None else None
    found_tokenizer = _find_tokenizer((*corpora, *([validation] if validation else [])), tokenizer)
    opened = None if found_tokenizer is None else load_tokenizer(found_tokenizer)
    if opened is not None:
        corpora = tuple(_with_end(corpus, opened) for corpus in corpora)
        validation = validation and _with_end(validation, opened)
    weights = split_weights(split or "1")
    identities, facts = [], {f"{part}_{unit}": 0 for part in PARTS for unit in ("documents", "tokens")}
    try:
        for corpus in corpora:
            identities.append(tokens_identity(open_tokens(corpus.prefix))[0])
            for part in PARTS:
                found = open_tokens(corpus.prefix, weights, part)
                facts[f"{part}_documents"] += len(found.documents) - 1
                facts[f"{part}_tokens"] += len(found.tokens)
        if validation is not None:
            found = open_tokens(validation.prefix)
            identities.append(tokens_identity(found)[0])
            facts |= {"valid_documents": len(found.documents) - 1, "valid_tokens": len(found.tokens)}
    except RunError as error:  # files that the user gave, not those of a step
        raise UserError(str(error)) from error
    size = None if opened is None else vocab_size(opened)
    if size is not None and vocab is not None and vocab < size:
        raise UserError(f"vocab is {vocab:,}, but the tokenizer {found_tokenizer} has {size:,} tokens; leave vocab out")
    if (size := vocab or size) is None:
        remedy = "give --tokenizer DIR, or the number of its tokens, --vocab N"
        raise UserError(f"{corpora[0].prefix} has no {TOKENIZER}/ beside it; {remedy}")
    raw = [one.prefix for one in (*corpora, *([validation] if validation else [])) if is_raw(one.prefix)]
    for path in raw if size > MAX_TWO_BYTES else []:
        if open_tokens(path).tokens.dtype.itemsize == 2:  # ids of four bytes would be read as two ids each
            raise UserError(
                f"{path} has tokens of two bytes, but the vocabulary {size:,} ids; give a pair of .bin and .idx"
            )
    digest = None if found_tokenizer is None else tokenizer_hash(found_tokenizer)
    prefix = None if validation is None else validation.prefix
    return ReadyTokens(corpora, split, prefix, size, found_tokenizer, digest, tuple(identities), facts)


def parse_corpora(tokens: str) -> tuple[Corpus, ...]:
    """Parse `PREFIX`, `PREFIX,PREFIX` (equal weights) or `0.3 PREFIX 0.7 PREFIX` (Megatron-LM's `--data-path`).

    Corpora of weight 0 are left out.

    Raises:
        UserError: a weight or a prefix is missing or wrong.
    """
    words = tokens.split()
    if len(words) > 1 and _is_number(words[0]):
        if len(words) % 2:
            raise UserError(f"tokens: {tokens!r} is not pairs of weight and prefix, as '0.3 PREFIX 0.7 PREFIX'")
        pairs = list(zip(words[1::2], words[::2], strict=True))
    else:
        pairs = [(prefix.strip(), "1") for prefix in tokens.split(",")]
    if not all(prefix for prefix, _ in pairs):
        raise UserError(f"tokens: {tokens!r} has an empty prefix; give PREFIX, or PREFIX,PREFIX")
    corpora = [
        build(Corpus, {"prefix": plain_prefix(Path(prefix).absolute()), "weight": weight}, source=f"tokens: {prefix}")
        for prefix, weight in pairs
    ]
    if not any(corpus.weight for corpus in corpora):
        raise UserError(f"tokens: all weights of {tokens!r} are 0, which leaves nothing for training; raise one")
    return tuple(corpus for corpus in corpora if corpus.weight)


def _with_end(corpus: Corpus, tokenizer: Tokenizer) -> Corpus:
    """Add the end-of-text id of the tokenizer to the name of a raw file, if it is not the usual one."""
    if not is_raw(corpus.prefix):
        return corpus
    return corpus.model_copy(update={"prefix": with_end(corpus.prefix, end_of_text_id(tokenizer))})


def _one_prefix(valid: str) -> Corpus:
    """Parse the prefix of validation tokens.

    Raises:
        UserError: it is several prefixes.
    """
    corpora = parse_corpora(valid)
    if len(corpora) > 1:
        raise UserError(f"valid: {valid!r} names {len(corpora)} corpora; validation takes one: --valid PREFIX")
    return corpora[0]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _find_tokenizer(corpora: tuple[Corpus, ...], given: str | None) -> Path | None:
    """Find the tokenizer of corpora: the given one, else the one beside them; None if there is none.

    Raises:
        UserError: it cannot be read, or two of them differ.
    """
    prefixes = [corpus.prefix for corpus in corpora if not corpus.prefix.startswith(MOCK)]
    folders = [Path(prefix).parent / TOKENIZER for prefix in prefixes]
    found = [folder for folder in dict.fromkeys(folders) if has_tokenizer(folder)]
    if given is not None:
        found.insert(0, Path(given).absolute())
    for other in found[1:]:
        if tokenizer_hash(other) != tokenizer_hash(found[0]):
            raise UserError(f"the tokenizers {found[0]} and {other} differ; all tokens of a run have one tokenizer")
    return found[0] if found else None
