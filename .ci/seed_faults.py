"""Seed faults into covered product lines and count those that the fast tests find.

    pip install -e '.[dev,test]'
    pytest --cov=flows --cov=gpt2train --cov=tasks --cov-context=test --cov-report=
    python .ci/seed_faults.py --count 60 --seed 1 | tee before.txt
    python .ci/seed_faults.py --again before.txt    # the same faults, on another state of the tests and its coverage

Each fault changes one operator or constant in a line, chosen at random, that tests execute within a function; then at
most `--tests` of the tests that execute it run on a copy of the checkout. A fault is found if one of them fails that
passes without it. Prints one line per fault; the last one has the counts. For one package in this process, first
`pytest -n0 --dist=no tests/tasks/dedup --cov=tasks.dedup --cov-context=test --cov-report=`: with xdist's mode of
`pyproject.toml` and no workers the names of the tests are missing.
"""

import argparse
import ast
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 600  # for the tests of one fault; a fault that makes them hang is found
COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*"}
SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.Mod: "%", ast.And: "and", ast.Or: "or",
}  # fmt: skip


class Fault(NamedTuple):
    """Replacement of some bytes of a line."""

    file: str
    line: int
    start: int
    end: int
    new: str


def between(file: str, source: list[bytes], left: ast.expr, right: ast.expr, sign: str, new: str) -> Iterator[Fault]:
    """Yield the fault that replaces an operator between two operands, if it stands on the line of the left one."""
    line = left.end_lineno or left.lineno
    stop = right.col_offset if right.lineno == line else len(source[line - 1])
    gap = source[line - 1][left.end_col_offset : stop]
    at = gap.find(sign.encode())
    if at >= 0:
        start = (left.end_col_offset or 0) + at
        yield Fault(file, line, start, start + len(sign), new)


def faults_of(file: str, text: bytes) -> Iterator[Fault]:
    """Yield every fault that can be seeded into the functions of a module."""
    source = text.splitlines()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen: set[Fault] = set()
    for node in (node for function in functions for statement in function.body for node in ast.walk(statement)):
        found: list[Fault] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                new = COMPARISONS[type(operator)]
                found += between(file, source, left, right, SIGNS[type(operator)], new)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            found += between(file, source, node.left, node.right, SIGNS[type(node.op)], OPERATORS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            new = "or" if isinstance(node.op, ast.And) else "and"
            found += between(file, source, node.values[0], node.values[1], SIGNS[type(node.op)], new)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int) and node.lineno == node.end_lineno:
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            found.append(Fault(file, node.lineno, node.col_offset, node.end_col_offset or 0, str(value)))
        for fault in found:
            if fault not in seen:
                seen.add(fault)
                yield fault


def covered_faults(data_file: Path) -> dict[Fault, list[str]]:
    """Return the faults in lines that tests execute, each with the ids of these tests."""
    from coverage import CoverageData

    data = CoverageData(str(data_file))
    data.read()
    covered: dict[Fault, list[str]] = {}
    for path in sorted(data.measured_files()):
        if not Path(path).is_relative_to(ROOT) or Path(path).suffix != ".py":  # templates of Jinja are measured too
            continue
        tests = data.contexts_by_lineno(path)
        for fault in faults_of(str(Path(path).relative_to(ROOT)), Path(path).read_bytes()):
            names = tests.get(fault.line, [])  # with the group of xdist, and the phase
            ids = {re.sub(r"(@(the main job|tests/[^@]*))?\|\w+$", "", name) for name in names} - {""}
            if ids:
                covered[fault] = sorted(ids)
    return covered


def run_tests(tests: list[str], checkout: Path, compiled: Path, *flags: str) -> tuple[int, str]:
    """Run tests of a checkout, with a folder for what numba compiles; exit status, 1 if they hang, and output."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *flags, *tests]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "NUMBA_CACHE_DIR": str(compiled)}
    try:
        result = subprocess.run(command, cwd=checkout, env=environment, stdout=PIPE, stderr=DEVNULL, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return 1, ""
    return result.returncode, result.stdout.decode(errors="replace")


def is_found(fault: Fault, tests: list[str], checkout: Path, compiled: Path) -> bool:
    """Seed a fault into a checkout, run tests there and take the fault out again; True if one fails by the fault.

    numba keeps a compiled function as long as its own file is unchanged, with what it calls from other files: a fault
    in such code has a folder of its own.
    """
    file = checkout / fault.file
    text = file.read_bytes()
    lines = text.splitlines(keepends=True)
    old = lines[fault.line - 1]
    lines[fault.line - 1] = old[: fault.start] + fault.new.encode() + old[fault.end :]
    with tempfile.TemporaryDirectory() as own:
        while tests:
            file.write_bytes(b"".join(lines))
            try:
                status, output = run_tests(tests, checkout, Path(own) if b"numba" in text else compiled, "-x", "-rfE")
            finally:
                file.write_bytes(text)
            if status == 0:
                return False
            failed = [test for test in tests if f"FAILED {test}" in output or f"ERROR {test}" in output] or tests
            if run_tests(failed, checkout, compiled, "-x")[0] == 0:
                return True
            tests = [test for test in tests if test not in failed]  # they fail without the fault too
    return False


def chosen_faults(covered: dict[Fault, list[str]], options: argparse.Namespace) -> list[Fault]:
    """Return the faults to seed: those of an earlier report, or some that are covered, in an order of the seed."""
    if options.again:
        pattern = r"^(?:found|MISSED)  (\S+):(\d+):(\d+)-(\d+)  .* -> (.+)$"
        rows = re.findall(pattern, options.again.read_text(encoding="utf-8"), flags=re.M)
        return [Fault(file, int(line), int(start), int(end), new) for file, line, start, end, new in rows]
    return sorted(covered, key=lambda fault: random.Random(f"{options.seed} {fault}").random())[: options.count]


def nearest(fault: Fault, tests: list[str], seed: int) -> list[str]:
    """Return tests in the order in which to run them: of the module by their names, of its package, then at random."""
    package = f"tests/{Path(fault.file).parent}/"
    own = f"{package}test_{Path(fault.file).stem}"
    shuffled = random.Random(f"{seed} {fault}").sample(tests, len(tests))
    return sorted(shuffled, key=lambda test: (not test.startswith(own), not test.startswith(package)))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="faults to seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=Path, help="report of an earlier run, whose faults are seeded")
    parser.add_argument("--tests", type=int, default=20, help="tests to run for each fault")
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="data file with tests as contexts")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the worktree would stay
    covered = covered_faults(options.coverage)
    chosen = chosen_faults(covered, options)
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        checkout, compiled = Path(folder) / "checkout", Path(folder) / "numba"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", checkout, "HEAD"], cwd=ROOT, check=True)
        try:
            for fault in chosen:
                tests = covered.get(fault, [])
                tests = nearest(fault, tests, options.seed)[: options.tests]
                line = (ROOT / fault.file).read_bytes().splitlines()[fault.line - 1]
                hit = bool(tests) and is_found(fault, tests, checkout, compiled)
                found += hit
                place = f"{fault.file}:{fault.line}:{fault.start}-{fault.end}"
                change = f"{line[fault.start : fault.end].decode()} -> {fault.new}"
                print(f"{'found' if hit else 'MISSED'}  {place}  {change}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)
    print(f"{found} of {len(chosen)} faults found, seed {options.seed}, of {len(covered)} that could be seeded")


if __name__ == "__main__":
    main()
