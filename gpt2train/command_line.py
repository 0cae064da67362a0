"""Conventions of all commands: exit codes, errors in one line, tracebacks only with `--debug`."""

import errno
import os
import select
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError, UnusedCliTokensError
from pydantic import ValidationError

from gpt2train import end_imports
from gpt2train.compat.cyclopts import convert_flags
from gpt2train.errors import RunError, UserError, is_failure, redact, redacted_traceback
from gpt2train.settings import is_group
from gpt2train.store.files import no_space
from gpt2train.store.hub import TOKENIZER_FILES, local_copy

STDOUT = 1  # file descriptor
BROKEN_PIPE = 141  # exit code of programs that SIGPIPE ends, 128 + 13
# Folder of a model, or its name on the hub, ORG/NAME or hf://ORG/NAME.
ModelFolder = Annotated[Path, Parameter(converter=lambda _, tokens: local_copy(tokens[-1].value))]
ModelFolders = Annotated[
    list[Path], Parameter(converter=lambda _, tokens: [local_copy(one.value) for one in tokens], negative=())
]
TokenizerFolder = Annotated[
    Path | None, Parameter(converter=lambda _, tokens: local_copy(tokens[-1].value, TOKENIZER_FILES))
]
HELP_DEBUG = "`--debug` on any command shows the traceback of an error."


def run_command(app: App, argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; see `exit_code`.

    `--debug` is removed from the arguments, anywhere before a `--`.
    """
    if argv is None:
        end_imports()
    given = list(sys.argv[1:] if argv is None else argv)
    flags = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in flags
    arguments = [flag for flag in flags if flag != "--debug"] + given[len(flags) :]
    if not debug:
        os.environ["RUST_BACKTRACE"] = "0"  # a panic of a library in Rust would write 40 lines of its own
    convert_flags()
    app.suppress_keyboard_interrupt = False  # cyclopts would exit silently

    def call() -> object:
        try:
            Path.cwd()
        except FileNotFoundError as error:  # without this, torch ends the process when it is imported
            raise UserError("the working folder was removed; change to one that is there") from error
        return app(arguments, exit_on_error=False, print_error=False, result_action="return_value")

    return exit_code(call, debug)


def exit_code(call: Callable[[], object], debug: bool) -> int:
    """Call the function of a command and return the exit code of the command.

    0: success. 2: user error (`UserError`, or a wrong flag, with the nearest valid name). 1: failure at run time.
    130: Ctrl-C. 141, without a message: the reader of standard output has ended, as of `| head`. An error is one line
    on standard error that begins with `error:`; the traceback goes before it with `debug`.
    """
    try:
        call()
        print(end="", flush=True)
    except CycloptsError as error:
        return fail(explain_flags(error), 2, debug)
    except UserError as error:
        return fail(str(error), 2, debug)
    except RunError as error:
        return fail(str(error), 1, debug)
    except KeyboardInterrupt:
        return fail("interrupted", 130, debug)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return fail(f"{str(error.filename)[:60]}…: the name of a file is too long; give the right path", 2, debug)
        if isinstance(error, PermissionError) and error.filename:
            return fail(f"no permission for {error.filename}; change its mode, or run as its owner", 2, debug)
        if full := no_space(error):
            place = error.filename or "a file or standard output"
            return fail(f"{full.reason} while writing {place}; {full.remedy} and run again", 1, debug)
        if isinstance(error, BrokenPipeError) and _drop_output_without_reader():
            return BROKEN_PIPE
        return _fail_unexpectedly(error, debug)
    except BaseException as error:  # the last handler of a command: one line, and the traceback on demand
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):  # of rich, in a help page
            return BROKEN_PIPE
        if not is_failure(error):
            raise
        return _fail_unexpectedly(error, debug)
    return 0


def _drop_output_without_reader() -> bool:
    """Discard standard output from now on if its reader has ended, as `head` does; return True if it has."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(STDOUT, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # Python's own flush at exit would print the error again
    return True


def _fail_unexpectedly(error: BaseException, debug: bool) -> int:
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        return fail(f"not enough memory{said}; end other programs or raise its limit, and run again", 1, debug)
    return fail(f"{type(error).__name__}: {error}" + ("" if debug else " (--debug shows the traceback)"), 1, debug)


def fail(message: str, code: int, debug: bool) -> int:
    """Print an error as one line, with `--debug` after the current exception's traceback, and return the exit code."""
    if debug and (error := sys.exception()) is not None:
        print(redacted_traceback(error), file=sys.stderr, end="")
    print(f"error: {redact(' '.join(message.split()))}", file=sys.stderr)
    return code


def explain_flags(error: CycloptsError) -> str:
    """Describe an error of the flags in one line, with the names that the user typed."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ValidationError):
        first = cause.errors()[0]
        flag = "--" + ".".join(str(part) for part in first["loc"]).replace("_", "-")
        if first["type"] == "model_type" and (members := _members(error, flag)):
            return is_group(flag, members)
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # a check of several flags: the message names them
            return message
        given = "" if first["type"] == "missing" else f" (got {first.get('input')!r})"
        return f"{flag}: {message[:1].lower()}{message[1:]}{given}"
    if isinstance(error, UnknownOptionError | MissingArgumentError) and error.app is not None:
        options = {name for names in _options(error) for name in names}
        if unknown := _unknown_option(error, options):
            if members := _members(error, unknown):
                return is_group(unknown, members)
            from gpt2train.foreign.table import unknown_option  # a table that only a mistake needs

            return unknown_option(unknown, options)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"no option takes {error.unused_tokens[0]!r}; quote a value with spaces, --help lists the options"
    return str(error)


def _options(error: CycloptsError) -> list[tuple[str, ...]]:
    """Names of each option of the command."""
    return [one.names for one in error.app.assemble_argument_collection() if not one.children] if error.app else []


def _members(error: CycloptsError, group: str) -> list[str]:
    return [names[0] for names in _options(error) if names[0].startswith(f"{group}.")]


def _unknown_option(error: UnknownOptionError | MissingArgumentError, options: Collection[str]) -> str | None:
    """The option that is not known: one that is missing may have been given under another name."""
    if isinstance(error, UnknownOptionError):
        return error.token.keyword or error.token.value
    unused = (token for token in error.unused_tokens or () if token.startswith("--") and token != "--")
    return next((token for token in unused if token.partition("=")[0] not in options), None)


def printable(text: str, keep: str = "\n\t") -> str:
    """Replace the control characters of untrusted text, which a terminal would execute, but those to keep."""
    return "".join(letter if letter.isprintable() or letter in keep else "\ufffd" for letter in text)
