"""Settings of a task file: what a model is fine-tuned for, the files, their columns, and the training."""

from operator import not_
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gpt2train.errors import UserError
from gpt2train.settings import NaturalNumber, Settings, build, in_home, read_toml

Kind = Literal["classification", "answers", "text"]
FileFormat = Literal["auto", "tsv", "csv", "json", "parquet", "text"]
PARTS = ("train", "valid", "test")
PROMPT_END = "\n"
MAX_LABELS = 10_000


class TaskData(Settings):
    """Files of a task, and their columns. Paths are relative to the task file."""

    train: str | tuple[str, ...]
    """Training rows: files, folders, globs or URLs."""
    valid: str | tuple[str, ...] = ()
    """Validation rows; none: see `holdout`."""
    test: str | tuple[str, ...] = ()
    """Test rows, which get predictions and scores; labels are optional."""
    holdout: float = Field(0.0, ge=0, lt=1)
    """Share of the training rows that are used for validation, if there are no files for it. A row is chosen by its
    text, or by the question of its first answer, so that equal ones are on the same side."""
    format: FileFormat = "auto"
    """Format of the files; auto: by the suffix (.tsv .csv .jsonl .json .parquet .arrow .txt), before that of a
    compression. A .txt file is a document in a task of the kind text, and tab-separated in others."""
    quotes: bool | None = None
    """Quotes enclose the values of tab- or comma-separated files. None: in .csv, not in .tsv, where they are text."""
    columns: tuple[str, ...] = ()
    """Names of the columns of tab- or comma-separated files without a line of names."""
    text: str = "text"
    """Column of the text, or of the first one of a pair."""
    pair: str | None = None
    """classification: column of the second text of a pair."""
    label: str = "label"
    """classification: column of the label."""
    labels: tuple[str, ...] = ()
    """classification: labels in the order of their numbers 0, 1, …; in the files stand labels or numbers. None: those
    that the training rows have, sorted."""
    prompt: str = "prompt"
    """answers: column of the prompt."""
    answer: str = "answer"
    """answers: column of the answer."""
    messages: str | None = None
    """answers: column of conversations, in place of prompt and answer: lists of {"role": "user" | "assistant" |
    "system", "content": text}, with other roles where the model's chat template has them. The loss is on what the
    assistant says."""
    tools: str | None = Field(None, exclude_if=not_)
    """answers: column of the tools that the assistant of a conversation may call, as JSON schemas."""

    @field_validator("labels", mode="before")
    @classmethod
    def _as_text(cls, labels: Any) -> Any:
        """Accept numbers as labels."""
        if not isinstance(labels, list | tuple):
            return labels
        return tuple(str(label) if type(label) is int else label for label in labels)

    @field_validator("labels")
    @classmethod
    def _several(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if labels and not 2 <= len(labels) <= MAX_LABELS:
            raise ValueError(f"{len(labels)} labels; a classification has from 2 to {MAX_LABELS:,}")
        if len({*labels}) < len(labels):
            raise ValueError("a label is given twice")
        return labels

    @model_validator(mode="after")
    def _one_validation(self) -> "TaskData":
        if self.valid and self.holdout:
            raise ValueError("valid and holdout both give validation rows; leave one out")
        return self

    def files(self, part: str) -> tuple[str, ...]:
        """Files of train, valid or test."""
        given = getattr(self, part)
        return (given,) if isinstance(given, str) else tuple(given)


class TaskSettings(Settings):
    """A task: kind, data, form of the samples, training."""

    kind: Kind
    """classification: predict the label of a text or of a pair of texts. answers: answer prompts; the loss is on the
    answers alone. text: continue the pretraining on texts."""
    data: TaskData
    """Files and columns."""
    max_length: NaturalNumber = 0
    """Tokens of a sample; longer ones are cut, and counted in the log. 0: 128 for a classification, else the context of
    the model, at most 1,024."""
    separator: str = "\n"
    """classification: text between the two texts of a pair."""
    # Left out of the parameters where it is off, so that the fingerprints of older samples stay the same.
    both_orders: bool = Field(False, exclude_if=not_)
    """classification: each pair of the training rows is also a sample with its texts exchanged, for labels that do not
    depend on their order, such as those of paraphrases."""
    prompt_end: str = PROMPT_END
    """answers: text after each prompt, in the default chat template of a model that has none."""
    train: dict[str, Any] = {}
    """Settings of the training over those of fine-tuning, as in docs/train/settings.md."""

    @model_validator(mode="after")
    def _columns_of_the_kind(self) -> "TaskSettings":
        if self.kind != "classification" and (self.data.labels or self.data.pair is not None):
            raise ValueError(f"data.labels and data.pair are for classification, not for {self.kind}; leave them out")
        if self.both_orders and self.data.pair is None:
            raise ValueError("both_orders exchanges the texts of pairs; name data.pair, or leave both_orders out")
        if self.kind != "answers" and self.data.messages is not None:
            raise ValueError(f"data.messages is for answers, not for {self.kind}; leave it out")
        if self.data.tools is not None and self.data.messages is None:
            raise ValueError("data.tools is for conversations; name their column in data.messages, or leave it out")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read, without the label."""
        return self.text_columns if self.data.tools is None else (*self.text_columns, self.data.tools)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that each row must have, without the label."""
        data = self.data
        if self.kind == "answers":
            return (data.messages,) if data.messages is not None else (data.prompt, data.answer)
        return (data.text,) if data.pair is None else (data.text, data.pair)


def read_task(path: str) -> TaskSettings:
    """Read a task file; relative paths in it are made absolute.

    Raises:
        UserError: it is missing, is not TOML, or has a wrong setting.
    """
    folder = Path(path).absolute().parent
    try:
        values = read_toml(path)
    except UserError as error:
        if Path(path).suffix == ".toml" or not Path(in_home(path)).is_file():
            raise
        expected = "TOML with a kind and [data]; give one that names your rows in data.train"
        raise UserError(f"{path} is not a task file, which is {expected}") from error
    if "data" not in values or "kind" not in values:
        raise UserError(f"{path} is not a task file: it has no {'kind' if 'kind' not in values else '[data]'}")
    task = build(TaskSettings, values, source=path)
    found = {part: tuple(_absolute(name, folder) for name in task.data.files(part)) for part in PARTS}
    return task.model_copy(update={"data": task.data.model_copy(update=found)})


def _absolute(name: str, folder: Path) -> str:
    return name if "://" in name else str(folder / in_home(name))
