"""Words of a shell script: quotes, expansions, arrays and the operators between statements; nothing is executed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gpt2train.errors import UserError

MAX_INSIDE = 4096  # characters of one `${…}`; a bracket that is not closed is not searched to the end each time
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
PLACEHOLDER = re.compile(r"<[A-Za-z][^<>|;&\n\"']*>")  # of the reader: `DATA_PATH=<Specify path>`
LETTERS, QUOTED = re.compile(r"[^\s$`\\'\";|&()<>=]+"), re.compile(r"[^$`\\\"]+")
BLANKS = re.compile(r"[ \t\r]+|\\\r?\n|#[^\n]*")
OPERATOR = re.compile(r"&&|\|\||;;|[\n;|&()]")
HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
REDIRECTION = re.compile(r"\d*(>>|>&|>|<)\s*[^\s;|&]*")
VARIABLE = re.compile(r"[A-Za-z_]\w*|\d|[@*#?!$]")


class Variables(Protocol):
    """The variables of a script while it is read."""

    notes: list[str]

    @property
    def skipping(self) -> bool:
        """True in a branch that is not taken, where nothing is assigned."""

    def assign(self, name: str, values: list[str], *, append: bool = False, array: bool = False) -> None:
        """Set a variable, or append to it."""

    def variable(self, expression: str, line: int) -> list[str]:
        """Values of `$…` or of the inside of `${…}`."""

    def computed(self, expression: str, line: int) -> str:
        """Value of the inside of `$((…))`."""


@dataclass
class Word:
    """A word under construction."""

    fields: list[str] = field(default_factory=list)  # its finished fields; an expansion without quotes may make several
    text: str | None = None  # the field under construction, None if there is none
    literal: str = ""  # what stands in the script before the first quote or expansion
    plain: bool = True  # False after a quote or an expansion

    def add(self, text: str) -> None:
        """Append text that is not split."""
        self.text = (self.text or "") + text

    def split(self, text: str) -> None:
        """Append an expansion without quotes, which white space splits into fields."""
        first, *others = re.split(r"\s+", text)
        if first:
            self.add(first)
        for other in others:
            if self.text is not None:
                self.fields.append(self.text)
            self.text = other or None

    def several(self, values: list[str]) -> None:
        """Append the elements of an array, each a field."""
        for place, value in enumerate(values):
            if place and self.text is not None:
                self.fields.append(self.text)
                self.text = None
            self.add(value)

    def finished(self) -> list[str]:
        """All fields."""
        return self.fields + ([] if self.text is None else [self.text])


class Lexer:
    """The statements of a script: line, words, and the operator before each."""

    def __init__(self, text: str, script: Variables) -> None:
        self.text = text
        self.place = 0
        self.line = 1
        self._script = script

    def __iter__(self) -> Iterator[tuple[int, list[Word], str]]:
        words: list[Word] = []
        operator = ""
        while self.place < len(self.text):
            self._skip_blanks()
            begin = self.line
            found = self._operator()
            if found is None:
                if word := self._word():
                    words.append(word)
                continue
            if words:
                yield begin, words, operator
            words, operator = [], found
        if words:
            yield self.line, words, operator

    def _skip_blanks(self) -> None:
        while match := BLANKS.match(self.text, self.place):
            self.line += match[0].count("\n")
            self.place = match.end()

    def _operator(self) -> str | None:
        """Read an operator that ends a statement, or a redirection; None before a word or at the end."""
        if self.place >= len(self.text):
            return ""
        if match := HERE_DOCUMENT.match(self.text, self.place):  # a text for a program
            end = re.compile(rf"^\s*{match[1]}\s*$", re.M).search(self.text, match.end())
            self._after(end.end() if end else len(self.text))
            return ""
        if match := OPERATOR.match(self.text, self.place):
            self._after(match.end())
            return match[0]
        return None

    def _after(self, place: int) -> None:
        self.line += self.text.count("\n", self.place, place)
        self.place = place

    def _word(self) -> Word | None:
        """Read a word; an array `NAME=(…)` is assigned at once. None for a redirection, which is left out."""
        word = Word()
        redirection = REDIRECTION.match(self.text, self.place)
        if redirection and not PLACEHOLDER.match(self.text, self.place):
            self._after(redirection.end())
            return None
        while self.place < len(self.text) and self.text[self.place] not in " \t\r\n;|&()":
            if self.text[self.place] == "\\" and self.text[self.place + 1 : self.place + 2] == "\n":
                break
            self.expand_or_add(word)
        match = ASSIGNMENT.fullmatch(word.literal)
        if match and word.plain and self.text[self.place : self.place + 1] == "(":
            self._array(match[1], bool(match[2]))
            return None
        if word.text is None and not word.fields and word.plain:
            self.place += 1  # a character that begins nothing
            return None
        return word

    def _array(self, name: str, append: bool) -> None:
        self.place += 1
        values: list[str] = []
        while self.place < len(self.text):
            self._skip_blanks()
            letter = self.text[self.place : self.place + 1]
            if letter in (")", "\n"):
                self._after(self.place + 1)
                if letter == ")":
                    break
                continue
            word = self._word()
            values += word.finished() if word else []
        if not self._script.skipping:
            self._script.assign(name, values, append=append, array=True)

    def expand_or_add(self, word: Word, *, quoted: bool = False) -> None:
        """Read one quote, expansion or letter into a word."""
        letter = self.text[self.place]
        if letter == "$":
            word.plain = False
            self._expansion(word, quoted)
        elif letter == "`":
            self._substitution(word, self.place + 1, self._found("`"))
        elif letter == "\\":
            word.add(self.text[self.place + 1 : self.place + 2].replace("\n", "") or "")
            self._after(self.place + 2)
        elif quoted:
            letters = QUOTED.match(self.text, self.place)
            self._add(word, letters[0] if letters else letter)
        elif letter == "'":
            end = self._found("'")
            word.plain = False
            word.add(self.text[self.place + 1 : end])
            self._after(end + 1)
        elif letter == '"':
            word.plain = False
            word.add("")
            self.place += 1
            while self.place < len(self.text) and self.text[self.place] != '"':
                self.expand_or_add(word, quoted=True)
            self._after(min(self.place + 1, len(self.text)))
        elif match := PLACEHOLDER.match(self.text, self.place):
            word.add(match[0].replace(" ", "_"))  # one word wherever it is inserted
            self._after(match.end())
        else:
            letters = LETTERS.match(self.text, self.place)
            run = letters[0] if letters else letter
            word.literal += run if word.plain else ""
            self._add(word, run)

    def _found(self, letter: str) -> int:
        """Place of a letter after this one, or the end."""
        end = self.text.find(letter, self.place + 1)
        return len(self.text) if end < 0 else end

    def _add(self, word: Word, text: str) -> None:
        word.add(text)
        self._after(self.place + len(text))

    def _expansion(self, word: Word, quoted: bool) -> None:
        rest = self.text[self.place + 1 : self.place + 3]
        if rest == "((":
            end = self._closing(self.place + 1, "(", ")")
            word.add(self._script.computed(self.text[self.place + 3 : max(end - 2, self.place + 3)], self.line))
            self._after(end)
        elif rest.startswith("("):
            end = self._closing(self.place + 1, "(", ")")
            self._substitution(word, self.place + 2, end - 1)
        elif rest.startswith("{"):
            end = self._closing(self.place + 1, "{", "}")
            inner = self.text[self.place + 2 : end - 1]
            self._insert(word, self._script.variable(inner, self.line), quoted, each=inner.endswith("[@]"))
            self._after(end)
        elif match := VARIABLE.match(self.text, self.place + 1):
            self._insert(word, self._script.variable(match[0], self.line), quoted)
            self._after(match.end())
        else:
            self._add(word, "$")

    @staticmethod
    def _insert(word: Word, values: list[str], quoted: bool, each: bool = False) -> None:
        if quoted and each:
            word.several(values)
        elif quoted:
            word.add(" ".join(values))
        else:
            word.split(" ".join(values))

    def _substitution(self, word: Word, begin: int, end: int) -> None:
        """Leave out a command substitution, but the folder of the script."""
        command = self.text[begin:end]
        word.plain = False
        if re.search(r"\bdirname\b.*(\$0|BASH_SOURCE)", command):
            word.add(".")
        elif not self._script.skipping:
            self._script.notes.append(f"line {self.line}: $({' '.join(command.split())[:40]}) is taken as empty")
        self._after(min(end + 1, len(self.text)))

    def _closing(self, place: int, opening: str, closing: str) -> int:
        """Place after the bracket that closes the one at a place."""
        depth = 0
        for at in range(place, min(len(self.text), place + MAX_INSIDE)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if depth == 0:
                return at + 1
        raise UserError(f"line {self.line}: {self.text[place : place + 20]}… is not closed")
