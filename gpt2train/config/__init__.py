"""Settings of a training run, Imports no torch.

`TrainSettings` holds the user's choices (a preset, a TOML file, flags, the form in the UI). `RunConfig` adds what the
data determines (token files, vocabulary, tokenizer) and the run folder. Each run folder contains its complete
`RunConfig` as `config.toml`, so that the same command resumes with the same numbers.
"""

from gpt2train.config.batch import BatchSettings, RampUp
from gpt2train.config.data import Corpus, DataSettings, DocumentSettings
from gpt2train.config.execution import LoggingSettings, ParallelSettings, PerformanceSettings
from gpt2train.config.model import ModelSettings
from gpt2train.config.optimizer import OptimizerSettings, ScalerSettings, ScheduleSettings, SpikeSettings
from gpt2train.config.presets import preset, presets
from gpt2train.config.run import (
    CONFIG_FILE,
    RunConfig,
    TrainSettings,
    read_run_config,
    read_run_settings,
    resolve_epochs,
    run_config,
    to_toml,
)

__all__ = [
    "CONFIG_FILE",
    "BatchSettings",
    "Corpus",
    "DataSettings",
    "DocumentSettings",
    "LoggingSettings",
    "ModelSettings",
    "OptimizerSettings",
    "ParallelSettings",
    "PerformanceSettings",
    "RampUp",
    "RunConfig",
    "ScalerSettings",
    "ScheduleSettings",
    "SpikeSettings",
    "TrainSettings",
    "preset",
    "presets",
    "read_run_config",
    "read_run_settings",
    "resolve_epochs",
    "run_config",
    "to_toml",
]
