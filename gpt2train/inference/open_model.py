"""Opening of a model for a command, in one process or distributed over several.

A wrong path, model or layout is named before torch is imported (2 s of CPU) and before processes are started.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2train.convert.settings import Device
from gpt2train.inference.settings import ServingLayout
from gpt2train.store.hub import model_address, pinned

if TYPE_CHECKING:
    from gpt2train.inference.distributed_decoder import DistributedModel
    from gpt2train.model.causal_lm import CausalLM
    from gpt2train.model.shape import Shape


PLACES = ("--model", "--tokenizer")  # options that can name a repository of the hub


def check_model(model: Path, layout: ServingLayout) -> "Shape":
    """Read the shape of a model folder, and check that it is a language model that a layout can split.

    Raises:
        UserError: the folder has no model of a known family, or no weights, or the layout does not fit it.
    """
    from gpt2train.convert.hf_config import check_weights, read_shape
    from gpt2train.model.families import check_language_model
    from gpt2train.parallel.layout import Layout

    shape = read_shape(model)
    check_language_model(shape, model)
    Layout.of_model(shape, layout.tp, layout.pp, layout.processes)
    check_weights(model)
    return shape


@contextlib.contextmanager
def open_model(model: Path, layout: ServingLayout, device: Device = "auto") -> "Iterator[CausalLM | DistributedModel]":
    """Open a model folder for the duration of a `with` block.

    If the layout has several processes and this one is not part of a job, it is replaced by one: see `exec_torchrun`.

    Raises:
        UserError: the model or the device does not exist, or the layout does not fit the model.
        gpt2train.inference.distributed_decoder.PeerLostError: inside the block, a process of the model was lost.
    """
    check_model(model, layout)
    if layout.processes == 1:
        from gpt2train.convert.huggingface import read_model

        yield read_model(model, device)
        return
    if "RANK" not in os.environ:
        exec_torchrun(layout.processes)
    from gpt2train.inference.distributed_job import open_distributed_model

    with open_distributed_model(model, layout, device) as distributed:
        yield distributed


def exec_torchrun(processes: int) -> None:
    """Replace this process by a launcher that runs the command line on several processes of this machine.

    The launcher inherits the process id, and with it the signals and the exit code.
    """
    words = list(sys.argv[1:])
    for number, word in enumerate(words):  # all processes read the commit of a hub that is `main` now
        option, equals, value = word.partition("=")
        if option in PLACES and equals:
            words[number] = f"{option}={pinned(model_address(value))}"
        elif number and words[number - 1] in PLACES:
            words[number] = pinned(model_address(word))
    arguments = ["--standalone", "--nproc-per-node", str(processes), "-m", "gpt2train.inference", *words]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "gpt2train.launch", "--", *arguments])
