"""Registry of callbacks of a training, and the setting `callbacks` that chooses them; does not import torch.

The setting is a list of names, `callbacks = ["early_stop"]`, or a group with a table of options for each name:

    [callbacks.early_stop]
    patience = 3
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from gpt2train.plugins import NoOptions, Registry
from gpt2train.settings import Settings, validated


@dataclass(frozen=True)
class CallbackSpec:
    """Specification of a callback."""

    callback: str  # subclass of `gpt2train.training.callbacks.Callback` as "module:Class", imported on first use
    options: type[Settings] = NoOptions  # settings model of its options


CALLBACKS: Registry[CallbackSpec] = Registry("callback")


def callback_options(chosen: "Callbacks") -> dict[str, Settings]:
    """Options of the chosen callbacks by name, in the order in which they are called.

    Raises:
        ValueError: a name is not registered, or is there twice, or an option is wrong.
    """
    found: dict[str, Settings] = {}
    for name in chosen:
        if name in found:
            raise ValueError(f"{name} is there twice; leave one out")
        given = chosen[name] if isinstance(chosen, Mapping) else {}
        found[name] = validated(CALLBACKS[CALLBACKS.known(name)].options, given, f"callback {name}")
    return found


def _names_or_tables(given: Any) -> Any:
    """Check the form of the setting; a single name is a list of one, as a flag of a command line gives it."""
    given = (given,) if isinstance(given, str) else given
    if isinstance(given, Mapping):
        if all(isinstance(options, Mapping) for options in given.values()):
            return given
    elif isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        return given
    raise ValueError("give a list of names, or a table [callbacks.NAME] of options for each")


def _complete(chosen: "Callbacks") -> "Callbacks":
    """Check names and options, and add the defaults of the options to tables."""
    options = callback_options(chosen)
    if not isinstance(chosen, dict):
        return chosen
    return {name: model.model_dump(mode="json") for name, model in options.items()}


Callbacks = tuple[str, ...] | dict[str, dict[str, Any]]
CallbacksSetting = Annotated[Callbacks, BeforeValidator(_names_or_tables), AfterValidator(_complete)]
