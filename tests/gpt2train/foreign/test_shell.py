"""Settings in other systems' shell scripts and Python files, hostile ones too."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from gpt2train.errors import UserError
from gpt2train.foreign.python_config import Symbol, read_python
from gpt2train.foreign.shell import MAX_SCRIPT, Script

CASES = [
    "A=1; run --x $A --y ${A}",
    'A="--x 1 --y 2"; run $A "$A"',
    "A='$B'; run $A \"$A\"",
    "A=one B=two; run $A$B ${A}_${B}",
    "export A=3; run --n=$A",
    "A=; run ${A:-4} ${A-5} ${B:-6} ${B-7} ${A:+8} ${A+9}",
    "run ${C:=7}; run $C",
    'A=(--x 1 "two words"); run "${A[@]}" ${A[@]} "${A[1]}"',
    'A=(1); A+=(2 3); run "${A[@]}"',
    'A="--x 1"; A+=" --y 2"; run $A',
    "A=4; B=$((A * 2 + $A / 3)); run $B $((7 % 4))",
    'run --x \\\n  1 \\\n  --y "a b"  # a remark\nrun "#" a#b',
    'if [ -z "$A" ]; then A=1; else A=2; fi; run $A; if [ -n "$B" ]; then A=3; else A=4; fi; run $A',
    'A=x; if [[ ! -z "${A}" ]]; then run yes; fi',
    'A=x; if [ "$A" = "y" ]; then run no; elif [ "$A" != "y" ]; then run other; else run last; fi',
    "A=3; if [[ $A -gt 2 ]]; then if [ $A -lt 3 ]; then run inner; else run outer; fi; fi",
    '[ -z "$A" ] && A=5; [ -n "$A" ] || A=6; run $A',
    'A="a\nb\tc"; run $A',
    'A="--x \\\n --y"; run $A',
    'C="run --z"; C+=" 1"; ${C}; eval $C',
    'run "$A" \'\' ""; run $A',
    "for A in 1 ; do run $A; done",
    "case $A in x) run no;; esac; run after",
    "f() {\n  run in\n}\nf",
    'A=1 run "$A" 2>/dev/null',
    'run "a\\"b" a\\ b \'c\\d\'',
    "cat <<EOF >/dev/null\nrun no $A\nEOF\nrun yes",
    'A="x=1"; run --$A "${A}y"',
]


def by_bash(scripts: list[str], folder: Path) -> list[list[str]]:
    """Arguments of every `run`, as bash passes them on."""
    text = "run() { printf '%s\\0' run \"$@\"; printf '\\1'; }\nset --\n"
    text += "".join(f"(\n{script}\n)\nprintf '\\2'\n" for script in scripts)
    done = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, cwd=folder, timeout=60)
    return [
        [word for call in part.split("\1")[:-1] for word in call.split("\0")[:-1]] for part in done.stdout.split("\2")
    ][:-1]


def by_us(script: str) -> list[str]:
    return [word for words in Script(script).commands if words[0] == "run" for word in words]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_agrees(tmp_path: Path) -> None:
    expected = by_bash(CASES, tmp_path)
    assert len(expected) == len(CASES)
    for script, theirs in zip(CASES, expected, strict=True):
        if script.startswith("f()"):
            theirs = ["run", "in"]  # the body of a function is read where it stands
        assert by_us(script) == theirs, script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_agrees_on_random_scripts(tmp_path: Path) -> None:
    draw = random.Random(0)
    values = ["1", "1.5e-4", "a b", "--x 1", "", "a-b_c", "949,50,1", "/data/x"]
    uses = ["$V", "${V}", '"$V"', '"${V}"', "${V:-d}", '"${V:-d e}"', "x$V", '"x${V}y"', "${V:+s}", "--o=$V"]

    def script() -> str:
        lines = []
        for _ in range(draw.randrange(2, 7)):
            name = draw.choice("AB")
            value = draw.choice([f'"{draw.choice(values)}"', f"'{draw.choice(values)}'", '"$A-${B:-1}"'])
            lines.append(f"{draw.choice(['', 'export '])}{name}{draw.choice(['=', '=', '+='])}{value}")
            if draw.random() < 0.3:
                test = f'[ {draw.choice(["-z", "-n"])} "${draw.choice("ABC")}" ]'
                lines.append(f"if {test}; then\n  B=2\nelse\n  run ${draw.choice('AB')}\nfi")
        words = [draw.choice(uses).replace("V", draw.choice("ABC")) for _ in range(draw.randrange(1, 6))]
        return "\n".join([*lines, "run " + " \\\n    ".join(words)])

    scripts = [script() for _ in range(120)]
    for text, theirs in zip(scripts, by_bash(scripts, tmp_path), strict=True):
        assert by_us(text) == theirs, text


def test_other_files_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/common.sh").write_text("size=${SIZE:-12}\nrun --size $size --save $1 $@\n")
    (tmp_path / "secret.sh").write_text("run --secret\n")
    text = "export SIZE=24\nsource $(dirname $0)/common.sh\n. ../secret.sh\nrun --now $(date +%s) --home ${HOME}/x\n"
    script = Script(text, tmp_path / "examples")
    assert script.commands == [["run", "--size", "24", "--save", "<$1>"], ["run", "--now", "--home", "~/x"]]
    assert [note.partition(": ")[0] for note in script.notes] == ["line 3", "line 4"]


HOSTILE = [
    "a=0123456789; " + "a=$a$a$a$a; " * 40 + "run $a",
    "a=(1 2 3 4); " + 'a=("${a[@]}" "${a[@]}"); ' * 40 + 'run "${a[@]}"',
    "run " + "$((" * 20_000,
    "source a.sh\n" * 5_000,
    "source " + "x" * 5_000 + " \0y\n. ../../etc/passwd",
    "a=(\n" * 20_000,
]
MORE_HOSTILE = [
    "run " + "${a:-" * 20_000,
    "run " + "${a:-${b:-" * 30 + "x" + "}}" * 30,
    "eval " * 5_000 + "run",
    "source b.sh\n" * 500,
    "a='" * 20_000,
    "if " * 20_000 + "run",
    "(" * 50_000,
    "<a" * 30_000,
    "x" * (MAX_SCRIPT + 1),
    "run $((9**9**9**9))",
    "run " + "a\\" * 50_000,
    "`" * 10_000,
]


@pytest.mark.parametrize(
    "text",
    [*HOSTILE, *(pytest.param(text, marks=pytest.mark.exhaustive) for text in MORE_HOSTILE)],
    ids=range(len(HOSTILE) + len(MORE_HOSTILE)),
)
def test_hostile_scripts_end_soon(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("source a.sh\nrun --x\n")
    for name, other in ("bc", "cd", "de"):
        (tmp_path / f"{name}.sh").write_text(f"source {other}.sh\n" * 1_000)
    try:
        script = Script(text, tmp_path)
    except UserError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 200
    else:
        assert sum(len(word) for words in script.commands for word in words) < 2**21


PLAIN = """
# constants and arithmetic
a = 5 * 8
b: float = 1e-1
c, d = 'x' + "y", 3  # several at once are not read
e = dict(f=dict(g=-2, h=[1, 2.0]), i=a // 3)
j = {"k": True, 'l': None, "m": (1, b)}
n = 2 ** 20 % 7
o = e
"""


def test_python_agrees() -> None:
    theirs: dict[str, object] = {}
    exec(PLAIN, {}, theirs)
    ours = read_python(PLAIN, "x.py").values
    e, j = theirs["e"], theirs["j"]
    assert isinstance(e, dict)
    assert isinstance(j, dict)
    assert {name: ours[name] for name in "abn"} == {name: theirs[name] for name in "abn"}
    assert (ours["e.f.g"], ours["e.f.h"], ours["e.i"]) == (e["f"]["g"], e["f"]["h"], e["i"])
    assert (ours["j.k"], ours["j.l"], ours["j.m"]) == (j["k"], j["l"], list(j["m"]))
    assert ours["o.i"] == ours["e.i"]
    assert "c" not in ours


def test_nothing_is_executed(tmp_path: Path) -> None:
    text = f"""
import os
os.system("touch {tmp_path / "made"}")
x = open({str(tmp_path / "made")!r}, "w").write("x")
y = __import__("os").getpid()
model.cfg.size = 3
optimizer = dict(type=HybridAdam, lr=0.1)
"""
    found = read_python(text, "x.py").values
    assert not (tmp_path / "made").exists()
    assert isinstance(found["y"], Symbol)
    assert found["model.cfg.size"] == 3
    assert (found["optimizer.type"], found["optimizer.lr"]) == ("HybridAdam", 0.1)


def test_arguments_of_a_call_are_values() -> None:
    text = "LR = 2e-5\ndef main():\n    args = hf.TrainingArguments('out', learning_rate=LR, fp16=True, eval=f())\n"
    found = read_python(text, "x.py", ("TrainingArguments",))
    assert found.called
    assert found.values == {"LR": 2e-5, "learning_rate": 2e-5, "fp16": True, "eval": "f()"}
    assert not read_python(text, "x.py").called


def test_hostile_configs_are_refused_or_left() -> None:
    values = ["(", "2 ** 9 ** 9 ** 9", "10 ** 4000 * 10 ** 4000 * 10 ** 4000", "'a' * 10 ** 9", "1 / 0"]
    values += ["'a'\n" + "x = x + x\n" * 40, "[1]\n" + "x = [x, x]\n" * 40]
    values += ["dict(a=1)\n" + "x = dict(a=x, b=x)\n" * 40, "-" * 50_000 + "1", "[" * 50_000 + "]" * 50_000]
    values += ["(" * 500 + "1" + ")" * 500, "-8 ** 0.5 + (-8) ** 0.5"]
    for text in (*(f"x = {value}" for value in values), "\0"):
        try:
            found = read_python(text, "x.py").values
        except UserError as error:
            assert str(error).count("\n") == 0
            assert "x.py" in str(error)
        else:
            assert all(len(str(value)) < 20_000 for value in found.values()), text[:60]
