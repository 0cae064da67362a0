"""Program for torchrun: runs the cases of a module one after the other in one process group.

    run_cases.py OUTPUT.json 'MODULE.FUNCTION ARGUMENTS'…

The first process writes {case: [findings of each process]}; it is for the test to judge them.
"""

import ast
import importlib
import json
import sys
from pathlib import Path

import torch.distributed as dist

from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
found = {}
for case in sys.argv[2:]:
    name, *arguments = case.split()
    module, _, function = name.partition(".")
    call = getattr(importlib.import_module(f"tests.gpt2train.parallel.{module}"), function)
    findings: list[object] = [None] * ctx.world
    dist.all_gather_object(findings, call(*map(ast.literal_eval, arguments)))
    found[case] = findings
if ctx.is_rank0:
    Path(sys.argv[1]).write_text(json.dumps(found))
dist.destroy_process_group()
exit_without_teardown(0)
