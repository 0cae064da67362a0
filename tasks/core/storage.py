from gpt2train.store.folder import *  # noqa: D100, F403
