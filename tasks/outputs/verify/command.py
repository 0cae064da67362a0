"""The command `gpt2train verify`."""

import dataclasses
import json
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.command_line import printable
from gpt2train.errors import RunError
from gpt2train.plan.devices import usable_cores
from gpt2train.store.counts import count_of
from gpt2train.store.files import format_bytes
from gpt2train.store.folder import Folder
from tasks.outputs.verify.records import Finding
from tasks.outputs.verify.verify import Options, verify

MAX_SHOWN = 10  # differences of a step on the terminal; JSON has all


def verify_output(
    output: str,
    /,
    *,
    batches: Annotated[int, Parameter(validator=Number(gte=0))] = 1,
    step: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 1,
    whole_mib: Annotated[int, Parameter(validator=Number(gte=0))] = 256,
    workers: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    environment: Literal["refuse", "accept"] = "refuse",
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Verify an output: the hashes of all files, the chain of the steps, and random batches that are done again.

    Nothing is written to the output. The exit code is 1 if anything differs.

    Parameters
    ----------
    output
        Output folder of a flow, or its fsspec URL.
    batches
        Random batches of each step that are done again, and documents that are tokenised again; 0: hashes alone.
    step
        Name of a step to verify; may be given several times. By default all.
    seed
        Seed of the choice of batches and documents.
    whole_mib
        Largest input, in MiB, of a step whose batches depend on each other: it is done again as a whole.
    workers
        Worker processes; by default one for each core.
    environment
        Outputs that were made with other versions of the packages that shape them: a difference, or accepted if the
        bytes are equal.
    json_
        Print JSON, with all differences.
    """
    root = Folder.given(output)
    options = Options(batches, seed, whole_mib << 20, workers or usable_cores(), environment == "accept")
    if not json_:
        print(f"{root.url}: {count_of(batches, 'batch')} of each step, seed {seed}")
    findings = []
    for finding in verify(root, step, options):
        findings.append(finding)
        if not json_:
            print("\n".join(_lines(finding)), flush=True)
    wrong = sum(bool(finding.problems) for finding in findings)
    if json_:
        steps = [dataclasses.asdict(finding) for finding in findings]
        found = {"output": root.url, "seed": seed, "batches": batches, "equal": not wrong, "steps": steps}
        print(json.dumps(found, ensure_ascii=False, indent=1))
    if wrong:
        raise RunError(f"{wrong} of {len(findings)} steps of {root.url} differ")


def _lines(finding: Finding) -> list[str]:
    """One line for the step, and one for each difference and note."""
    verdict = "DIFFERS" if finding.problems else "equal"
    about = f"{count_of(finding.files, 'file')}, {format_bytes(finding.bytes)}"
    redone = f"done again: {finding.redone}" if finding.redone else ""
    notes = "; ".join(finding.notes)
    lines = [f"{finding.step:<14} {verdict:<8} {'; '.join(filter(None, [about, redone, notes]))}"]
    lines += [f"  {problem}" for problem in finding.problems[:MAX_SHOWN]]
    if len(finding.problems) > MAX_SHOWN:
        lines.append(f"  and {len(finding.problems) - MAX_SHOWN} more (--json has all)")
    return [printable(line) for line in lines]
