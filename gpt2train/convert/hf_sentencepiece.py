"""SentencePiece models as a `tokenizer.json`, by which transformers encodes as `sentencepiece` does.

The conversion is exact for a model without normalisation table, as Llama's and those trained here. transformers' own
differs: it leaves out the first space of a text that begins with one, and `tokenizers` has no normalisation by the
longest match (docs/decisions.md). A model that cannot be converted exactly is opened in
transformers by `sentencepiece` too.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from gpt2train.data.added_tokens import Added
from gpt2train.data.sentencepiece_model import SPACE

# transformers' unigram finds the name of a byte in a text like any other piece, unless the text is cut within it.
BYTE_NAMES, CUT = r"<(?=0x[0-9A-F]{2}>)", "<0"
# Types of a piece and of a model in sentencepiece_model.proto.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
UNIGRAM, BPE = 1, 2


class Piece(NamedTuple):
    """Entry of the vocabulary."""

    text: str
    score: float
    type: int


class Model(NamedTuple):
    """Pieces and normalisation of texts, as read from a `.model` file."""

    pieces: list[Piece]
    kind: int
    """UNIGRAM, BPE, or another one."""
    table: bytes
    """Normalisation table, empty if there is none."""
    adds_space: bool
    """A space is put before the text."""
    trims_spaces: bool
    """Spaces at the ends are removed, and one is left of several."""
    other: bool
    """The model has settings that a `tokenizer.json` cannot express."""

    @property
    def unknown(self) -> int:
        """Number of the piece for what the others do not cover."""
        return next(number for number, piece in enumerate(self.pieces) if piece.type == UNKNOWN)


def tokenizer_json(
    content: bytes,
    prefix: Sequence[int] = (),
    added: Sequence[Added] = (),
    spaces_each: bool = True,
    suffix: Sequence[int] = (),
) -> str | None:
    """Return the `tokenizer.json` of the content of a `.model` file; None if it would not give the same ids.

    The ids `prefix` are put before a text and `suffix` after it, `added` are tokens beside the model, `spaces_each` is
    as for `SentencePieceTokenizer`.
    """
    model = parse_model(content)
    types = {piece.type for piece in model.pieces}
    if model.other or model.table or model.kind not in (UNIGRAM, BPE) or not types <= {NORMAL, UNKNOWN, CONTROL, BYTE}:
        return None
    cuts = model.kind == UNIGRAM and BYTE in types
    if cuts and any(CUT in piece.text for piece in model.pieces if piece.type == NORMAL):  # a cut would change others
        return None
    vocab = {piece.text: number for number, piece in enumerate(model.pieces)}
    tokenizer: Tokenizer
    if model.kind == BPE:
        tokenizer = Tokenizer(
            models.BPE(
                vocab=vocab,
                merges=list(_merges(model.pieces)),
                unk_token=model.pieces[model.unknown].text,
                fuse_unk=True,
                byte_fallback=BYTE in types,
            )
        )
    else:
        scores = [(piece.text, piece.score) for piece in model.pieces]
        tokenizer = Tokenizer(models.Unigram(scores, model.unknown, BYTE in types))
    steps: list[Any] = []
    if model.trims_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.adds_space and spaces_each:
        steps.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    splits: list[Any] = []
    if model.adds_space and not spaces_each:
        tokenizer.normalizer = normalizers.Sequence(steps)
        splits.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False))
    if cuts:
        splits.append(pre_tokenizers.Split(Regex(BYTE_NAMES), "merged_with_previous"))
    if splits:
        tokenizer.pre_tokenizer = splits[0] if len(splits) == 1 else pre_tokenizers.Sequence(splits)
    first = [decoders.Strip(" ", 1, 0)] if model.adds_space else []
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *first]
    tokenizer.decoder = decoders.Sequence(parts)
    special = [piece.text for piece in model.pieces if piece.type in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([token.as_token() for token in added])
    if prefix or suffix:
        before, after = ([model.pieces[number].text for number in ids] for ids in (prefix, suffix))
        tokens = list(zip([*before, *after], [*prefix, *suffix], strict=True))
        template = [*before, "$A", *after]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)
    return tokenizer.to_str()


def parse_model(content: bytes) -> Model:
    """Read the pieces and the normalisation of a `.model` file, a `ModelProto` of protocol buffers."""
    pieces, trainer, normalizer = [], {}, {}
    for field, value in _fields(content):
        if field == 1:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            pieces.append(Piece(piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            normalizer = dict(_fields(value))
    return Model(
        pieces,
        trainer.get(3, UNIGRAM),
        normalizer.get(2, b""),
        bool(normalizer.get(3, 1)),
        bool(normalizer.get(4, 1)),
        bool(trainer.get(24, 0)) or not normalizer.get(5, 1),  # spaces after words, or not escaped
    )


def _merges(pieces: list[Piece]) -> Iterator[tuple[str, str]]:
    """Pairs of pieces that are a piece together, best first, as SentencePiece merges them."""
    normal = {piece.text for piece in pieces if piece.type == NORMAL}
    for piece in sorted((piece for piece in pieces if piece.type == NORMAL), key=lambda piece: -piece.score):
        for cut in range(1, len(piece.text)):
            if piece.text[:cut] in normal and piece.text[cut:] in normal:
                yield piece.text[:cut], piece.text[cut:]


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a message with their values: integers, or bytes."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        match key & 7:
            case 0:
                value, place = _varint(content, place)
                yield key >> 3, value
            case 2:
                size, place = _varint(content, place)
                yield key >> 3, content[place : place + size]
                place += size
            case kind:
                size = 8 if kind == 1 else 4
                yield key >> 3, content[place : place + size]
                place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
