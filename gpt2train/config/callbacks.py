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
            known = list(CALLBACKS)
        except UserError as error:  # of a plug-in
            raise ValueError(str(error)) from error
        if name not in known:
            remedy = f"choose from {', '.join(known)}" if known else "install the plug-in that adds it"
            raise ValueError(f"there is no callback {name!r}; {remedy}")
    return names
