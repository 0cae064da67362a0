"""Every setting of a training run, once; one file a concern, no torch.

`TrainSettings` is what a person chooses (a preset, a TOML file, flags, the form in the UI); `RunConfig` adds what the
data decides (token files, vocabulary, tokenizer) and where the run lives. A run folder carries its `RunConfig` as
`config.toml`, complete, so that the same command goes on with the same numbers.
"""

from gpt2train.config.batch import BatchSettings, RampUp
from gpt2train.config.checkpoints import CheckpointSettings
from gpt2train.config.data import Corpus, DataSettings, MixSettings, SampleSettings, ValidationSettings
from gpt2train.config.logging import LoggingSettings
from gpt2train.config.model import ModelSettings
from gpt2train.config.optimizer import OptimizerSettings, ScalerSettings, ScheduleSettings, SkipSettings
from gpt2train.config.parallel import ParallelSettings
from gpt2train.config.presets import preset, presets
from gpt2train.config.run import CONFIG_FILE, RunConfig, TrainSettings, read_run_config, run_config, to_toml
from gpt2train.config.speed import SpeedSettings

__all__ = [
    "CONFIG_FILE",
    "BatchSettings",
    "CheckpointSettings",
    "Corpus",
    "DataSettings",
    "LoggingSettings",
    "MixSettings",
    "ModelSettings",
    "OptimizerSettings",
    "ParallelSettings",
    "RampUp",
    "RunConfig",
    "SampleSettings",
    "ScalerSettings",
    "ScheduleSettings",
    "SkipSettings",
    "SpeedSettings",
    "TrainSettings",
    "ValidationSettings",
    "preset",
    "presets",
    "read_run_config",
    "run_config",
    "to_toml",
]
