"""Registry of callbacks of a training, by their names in the setting `callbacks`; does not import torch."""

from gpt2train.errors import UserError
from gpt2train.plugins import Registry

# Names of subclasses of `gpt2train.training.callbacks.Callback`, as "module:Class", imported on first use.
CALLBACKS: Registry[str] = Registry("callback")


def known_callbacks(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that each name is registered, and is there once.

    Raises:
        ValueError: one is not.
    """
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"{name} is there twice; leave one out")
        try:
            CALLBACKS[name]
        except UserError as error:
            raise ValueError(str(error)) from error
    return names
