"""Commands of a shell script with their variables expanded; nothing is executed.

Read are assignments (`X=1`, `X+=1`, `export X=1`, arrays), `$X`, `${X}`, `${X:-default}`, `"${A[@]}"`, `$((…))`,
quotes, continued lines, `if` with tests of strings and numbers, `source` of a file of the script's folder, and `eval`.
A variable that is not set is empty, as in a shell; an argument of the script (`$1`) is kept as `<$1>`, and `~` stands
for `$HOME`. Other substitutions are empty. A loop is read once, with the first value; `case` is left out.
"""

import contextlib
import re
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.foreign.shell_values import arithmetic, is_true
from gpt2train.foreign.shell_words import ASSIGNMENT, Lexer, Word

MAX_EXPANDED = 2**20  # characters of all texts and variables; one that doubles itself is refused
MAX_NESTED = 8  # files that source each other, and defaults within defaults
LOOKED_UP = 256  # characters that looking for a file counts as
MAX_SCRIPT = 2**17  # bytes
NAME = re.compile(r"[A-Za-z_]\w*")
DECLARING = ("export", "declare", "local", "readonly", "typeset")
IGNORED = ("then", "do", "{", "}", "(", ")", "!", "time")


class Script:
    """A script, read from its first line to its last.

    Attributes:
        commands: the words of each command, with its variables expanded.
        notes: what was left out, as `line 12: …`.
    """

    def __init__(self, text: str, folder: Path | None = None) -> None:
        self.commands: list[list[str]] = []
        self.notes: list[str] = []
        self.folder = folder or Path()
        self._variables: dict[str, list[str]] = {"HOME": ["~"], "USER": ["user"], "PWD": ["."]}
        self._conditions: list[bool | None] = []  # of the open `if`s; None: one of its branches was taken
        self._depth = 0
        self._in_case = False
        self._last_test: bool | None = None  # of `[ … ]` before `&&`
        self._expanded = 0
        try:
            self._read(text)
        except RecursionError as error:
            raise UserError("quotes or brackets are nested too deeply; give the command itself") from error

    @property
    def skipping(self) -> bool:
        """True in a branch that is not taken, where nothing is assigned."""
        return any(condition is not True for condition in self._conditions)

    def _read(self, text: str) -> None:
        if self._depth > MAX_NESTED:
            raise UserError(f"files source each other more than {MAX_NESTED} deep; give one script")
        if len(text) > MAX_SCRIPT:
            raise UserError(f"more than {MAX_SCRIPT} characters are too many for a script; give the command itself")
        self._count([text])  # of files that source others, again and again
        self._depth += 1
        for line, words, operator in Lexer(text, self):
            self._statement(line, words, operator)
        self._depth -= 1

    def _statement(self, line: int, words: list[Word], operator: str) -> None:
        while words and words[0].plain and words[0].literal in IGNORED:
            words = words[1:]
        head = words[0].literal if words and words[0].plain else ""
        if head == "case" or self._in_case:
            self._in_case = head != "esac"
        elif head in ("if", "elif", "else", "fi"):
            self._condition(line, head, words[1:])
            if head == "else" and words[1:]:
                self._statement(line, words[1:], "")
        elif words and not self.skipping and head != "done":
            if operator in ("&&", "||") and self._last_test is not None and self._last_test != (operator == "&&"):
                return
            self._execute(line, words)

    def _condition(self, line: int, head: str, words: list[Word]) -> None:
        if head == "if":
            self._conditions.append(self._holds(line, words))
        elif not self._conditions:
            return
        elif head == "fi":
            self._conditions.pop()
        elif self._conditions.pop() is not False:
            self._conditions.append(None)
        else:
            self._conditions.append(head == "else" or self._holds(line, words))

    def _holds(self, line: int, words: list[Word]) -> bool:
        if self.skipping:
            return False
        fields = [text for word in words for text in (word.finished() or [""])]
        found = is_true(fields)
        if found is None:
            self.notes.append(f"line {line}: a condition that is no test of strings or numbers counts as false")
        return bool(found)

    def _execute(self, line: int, words: list[Word]) -> None:
        """Read one command: an assignment, a file to read, a text to read again, or a command to keep."""
        self._last_test = None
        if words[0].literal in DECLARING:
            words = [word for word in words[1:] if not word.literal.startswith("-")]
            words = [word for word in words if ASSIGNMENT.match(word.literal)]
        while words and (match := ASSIGNMENT.match(words[0].literal)):
            values = words[0].finished() or [""]
            values[0] = values[0][match.end() :]
            self.assign(match[1], [" ".join(values)], append=bool(match[2]))
            words = words[1:]
        fields = [text for word in words for text in word.finished()]
        if not fields:
            return
        if fields[0] in ("[", "[[", "test"):
            self._last_test = is_true(fields)
        elif fields[0] in ("source", ".") and len(fields) > 1:
            self._source(line, fields[1])
        elif fields[0] == "for":
            self.assign((fields[1:2] or ["_"])[0], fields[3:4])
        elif fields[0] == "eval":
            self._read(" ".join(fields[1:]))
        elif "-c" in fields[:-1] and fields[fields.index("-c") - 1].rpartition("/")[2] in ("bash", "sh"):
            self._read(fields[fields.index("-c") + 1])
        elif fields[0] not in ("echo", "printf"):
            self.commands.append(fields)

    def _source(self, line: int, name: str) -> None:
        file, text = self.folder / name, None
        self._expanded += LOOKED_UP
        with contextlib.suppress(OSError, ValueError):
            inside = file.resolve().is_relative_to(self.folder.resolve())
            if inside and file.is_file() and file.stat().st_size <= MAX_SCRIPT:
                text = file.read_text(encoding="utf-8", errors="replace")
        if text is None:
            self.notes.append(f"line {line}: {name} is not read; it is no script of this script's folder")
        else:
            self._read(text)

    def assign(self, name: str, values: list[str], *, append: bool = False, array: bool = False) -> None:
        """Set a variable, or append to it."""
        if append:
            before = self._variables.get(name, [] if array else [""])
            values = before + values if array else [*before[:-1], (before or [""])[-1] + values[0]]
        self._count(values)
        self._variables[name] = values

    def variable(self, expression: str, line: int) -> list[str]:
        """Values of `$…` or of the inside of `${…}`."""
        values = self._looked_up(expression, line)
        self._count(values)
        return values

    def _count(self, values: list[str]) -> None:
        self._expanded += sum(map(len, values))
        if self._expanded > MAX_EXPANDED or len(values) > MAX_EXPANDED // 64:
            raise UserError(f"more than {MAX_EXPANDED} characters of script and variables; give the command itself")

    def _looked_up(self, expression: str, line: int) -> list[str]:
        if expression in ("@", "*", "#", "?", "!", "$"):
            return []
        if expression.isdecimal():
            return [f"<${expression}>"] if expression != "0" else ["."]
        if (array := re.fullmatch(r"([A-Za-z_]\w*)\[([@*]|\d+)\]", expression)) is not None:
            elements = self._variables.get(array[1], [])
            return elements if array[2] in "@*" else elements[int(array[2][:6]) :][:1]
        parts = re.fullmatch(r"([A-Za-z_]\w*|\d+|@)(?:(:?[-=+?])(.*))?", expression, re.S)
        if parts is None:
            self.notes.append(f"line {line}: ${{{expression[:40]}}} is taken as empty")
            return []
        name, operator, word = parts.groups()
        if name.isdecimal() or name == "@":  # an argument of the script, which is not given
            return [self._text(word, line)] if operator and operator[-1] in "-=" else self._looked_up(name, line)
        values = self._variables.get(name)
        given = values is not None and (not (operator or "").startswith(":") or any(values))
        if operator and operator.endswith("+"):
            return [self._text(word, line)] if given else []
        if operator and not given:
            values = [self._text(word, line)]
            if operator.endswith("=") and not self.skipping:
                self.assign(name, values)
        return values or []

    def _text(self, word: str, line: int) -> str:
        """Expand the default of `${X:-default}`."""
        self._depth += 1
        if self._depth > MAX_NESTED:
            raise UserError(f"line {line}: defaults of variables are nested too deeply")
        made = Word()
        lexer = Lexer(word.strip("\"'"), self)
        lexer.line = line
        while lexer.place < len(lexer.text):
            lexer.expand_or_add(made, quoted=True)
        self._depth -= 1
        return "".join(made.finished())

    def computed(self, expression: str, line: int) -> str:
        """Value of the inside of `$((…))`."""
        names = {name: " ".join(self._variables.get(name, ["0"])) for name in NAME.findall(expression)}
        value = arithmetic(expression, names)
        if value is None:
            self.notes.append(f"line {line}: $(({expression[:40]})) is taken as empty")
        return "" if value is None else str(value)
