from gpt2train.store.manifest import *  # noqa: D100, F403
