"""Program for torchrun: runs the training command for one case after the other, as each rank would alone.

    command_cases.py CASES.json OUT

A case is `{"name", "arguments", "file_limit"}`; what rank N shows on its screen goes to `OUT/NAME.N.txt`, and its exit
code to `OUT/NAME.N.code`.
"""

import json
import os
import resource
import sys
from pathlib import Path

from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher
from gpt2train.train import main

follow_launcher()
rank = os.environ.get("RANK", "0")
cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
for case in cases:
    sys.stdout = sys.stderr = (out / f"{case['name']}.{rank}.txt").open("w")
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit := case.get("file_limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, whole[1]))
    code = main(case["arguments"])
    resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    (out / f"{case['name']}.{rank}.code").write_text(str(code))
exit_without_teardown(0)
