"""Further tokens that end a text, from the `generation_config.json` of a model folder, as of chat models."""

from pathlib import Path

from gpt2train.convert.hf_config import read_object
from gpt2train.errors import UserError

FILES = ("generation_config.json", "config.json")  # the first that exists, as in transformers
FIELD = "eos_token_id"
MAX_ENDS = 16  # as many as `stop_tokens`; models have up to five


def read_end_tokens(folder: Path, rows: int) -> tuple[int, ...]:
    """Read the ids of `eos_token_id`, at which `transformers` ends a text.

    Args:
        folder: model folder.
        rows: size of the model's vocabulary; a larger id, or -1, is no token and is left out.

    Raises:
        UserError: the file is damaged, or the field is neither a token id nor a list of them.
    """
    file = next((folder / name for name in FILES if (folder / name).exists()), None)
    if file is None:
        return ()
    given = read_object(file).get(FIELD)
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if len(ids) > MAX_ENDS or any(type(number) is not int for number in ids):
        raise UserError(
            f"{file}: {FIELD} is {str(given)[:40]}; expected a token id or a list of up to {MAX_ENDS}; correct it"
        )
    return tuple(number for number in dict.fromkeys(ids) if 0 <= number < rows)
