"""Tokens of a training, and what is known of them before it starts: made by an earlier flow, this one, or elsewhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flows.settings import PRESET_TOKENIZERS, PipelineSettings, PretrainSettings
from gpt2train.config.data import split_weights
from gpt2train.data.epoch import samples_in
from gpt2train.data.mixture import Mixture
from gpt2train.data.sentinels import TOP, needs_tokenizer
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.tokenizer import Tokenizer, load_tokenizer, open_tokenizer
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import UserError
from gpt2train.model.objectives import SpanCorruptionOptions
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import read_manifest
from tasks.ready_tokens.step import step_of
from tasks.ready_tokens.tokens import GPT2_VOCAB, TOKENIZER, ReadyTokens
from tasks.tokenizer.settings import TokenizerSettings
from tasks.tokenizer.step import own_files
from tasks.train.step import run_folder


class EarlierTokens:
    """Tokens that an earlier data flow made.

    Attributes:
        settings: Settings of the training.
        ready: Token files made elsewhere; None for tokens of the data flow.
        vocabulary_remedy: Remedy for a preset of GPT-2's vocabulary on other tokens.
        keeps_vocabulary: True if the user chose a tokenizer of their own.
    """

    ready: ReadyTokens | None = None
    vocabulary_remedy = "make the tokens with flows.dataprep --tokenizer.name gpt2"
    keeps_vocabulary = False

    def __init__(self, settings: PretrainSettings) -> None:
        self.settings = settings
        self._place = settings.data or settings.output
        self._data = Folder(self._place)

    @property
    def facts(self) -> Mapping[str, int]:
        """Counts of the tokens that exist already; empty if they are still to be made."""
        tokens = read_manifest(self._data / "tokens")
        return tokens.outcome.facts if tokens else {}

    @property
    def missing(self) -> str | None:
        """Message that there are no tokens to train on; None if there are, or if the run makes them."""
        if all(read_manifest(self._data / step) for step in ("tokens", "tokenizer")):
            return None
        return f"tokens (none in {self._place}; run flows.dataprep first)"

    @property
    def vocabulary(self) -> int:
        """Vocabulary size of the existing tokenizer, or of the one that the settings will produce."""
        bpe = read_manifest(self._data / "tokenizer")
        size = None if bpe is None else bpe.outcome.facts.get("vocab_size")
        return size or self._future_vocabulary()

    def _future_vocabulary(self) -> int:
        own = PRESET_TOKENIZERS.get(self.settings.preset)  # what the data flow would make for it, as `plan` counts
        return GPT2_VOCAB if own is None else TokenizerSettings.model_validate(own).vocab_size

    def run_folder(self) -> Folder | None:
        """Run folder of the training, whether it exists or not; None if its data are not there yet."""
        root = Folder(self.settings.output)
        tokens, bpe = read_manifest(self._data / "tokens"), read_manifest(self._data / "tokenizer")
        if tokens is None or bpe is None or not root.is_local:
            return None
        return root / run_folder(tokens, bpe, self.settings.train, self.settings.preset)

    def samples_per_epoch(self) -> int | None:
        """Samples until the first corpus repeats; None if the tokens of the data flow are still to be made."""
        train = self.settings.train
        if "train_tokens" not in (facts := self.facts):
            return None
        corpora = [(train.mixture.weight, facts["train_tokens"])]
        corpora += [(corpus.weight, len(open_tokens(corpus.prefix).tokens)) for corpus in train.mixture.corpora]
        return self._per_epoch(corpora)

    def _per_epoch(self, corpora: Sequence[tuple[float | None, int]]) -> int:
        """Samples until the first corpus, of a weight and a number of tokens, repeats."""
        counts = [(weight, samples_in(tokens, self.settings.train.sample_length)) for weight, tokens in corpora]
        used = [(weight, samples) for weight, samples in counts if weight] or counts[:1]  # a weight alone says nothing
        return Mixture([weight or 1.0 for weight, _ in used]).per_epoch([samples for _, samples in used])

    def open_tokenizer(self, options: SpanCorruptionOptions) -> tuple[str, Tokenizer] | None:
        """Open the tokenizer in which a training looks up its special tokens; return its place too.

        None if there is none to look into: it is not needed, is not made yet, or lies in an object store.

        Raises:
            UserError: no tokenizer is known, or the one that will be made has too few special tokens.
        """
        place = Path(self._place) / TOKENIZER if self.ready is None else self.ready.tokenizer
        if place is None and needs_tokenizer(options):
            raise UserError(f"{self.settings.train.objective.name} looks up its tokens by name; give --tokenizer DIR")
        if place is None or not (place.is_file() or has_tokenizer(place)):
            return None
        return str(place), load_tokenizer(place)


class OwnTokens(EarlierTokens):
    """Tokens that the run itself makes, before it trains on them."""

    settings: PipelineSettings
    vocabulary_remedy = "give --tokenizer.name gpt2"
    missing = None

    @property
    def keeps_vocabulary(self) -> bool:  # type: ignore[override]
        return self.settings.tokenizer.name == "folder"

    @property
    def vocabulary(self) -> int:
        return GPT2_VOCAB if self.settings.tokenizer.name == "gpt2" else super().vocabulary

    def _future_vocabulary(self) -> int:
        tokenizer = self.settings.tokenizer
        return tokenizer.vocab_size if tokenizer.name == "train" else own_files(tokenizer)[1]

    def open_tokenizer(self, options: SpanCorruptionOptions) -> tuple[str, Tokenizer] | None:
        tokenizer = self.settings.tokenizer
        if tokenizer.name == "folder":
            source = str(tokenizer.folder)
            return source, open_tokenizer(own_files(tokenizer)[0], source)
        if options.sentinels != TOP and tokenizer.sentinels < options.sentinel_count:
            raise UserError(
                f"tokenizer.sentinels is {tokenizer.sentinels}, but the objective needs "
                f"{options.sentinel_count}; set it to that, or objective.options.sentinels to top"
            )
        return None


class GivenTokens(EarlierTokens):
    """Token files that were made elsewhere."""

    vocabulary_remedy = "give tokens made with GPT-2's tokenizer"
    missing = None
    ready: ReadyTokens

    def __init__(self, settings: PretrainSettings, ready: ReadyTokens) -> None:
        super().__init__(settings)
        self.ready = ready

    @property
    def facts(self) -> Mapping[str, int]:
        return self.ready.facts

    @property
    def vocabulary(self) -> int:
        return self.ready.vocab

    def run_folder(self) -> Folder | None:
        root = Folder(self.settings.output)
        counted = step_of(root, self.ready).finished()
        return root / run_folder(counted, None, self.settings.train, self.settings.preset) if counted else None

    def samples_per_epoch(self) -> int | None:
        weights = None if self.ready.split is None else split_weights(self.ready.split)
        return self._per_epoch(
            [(corpus.weight, len(open_tokens(corpus.prefix, weights).tokens)) for corpus in self.ready.corpora]
        )
