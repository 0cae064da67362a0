"""Configs in Python: Python itself is the judge, nothing is executed, and hostile ones are refused in one line."""

from pathlib import Path

import pytest

from gpt2train.errors import UserError
from gpt2train.foreign.python_config import Symbol, read_python

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


@pytest.mark.parametrize(
    "text",
    [
        "x = (",
        "x = 2 ** 9 ** 9 ** 9",
        "x = 10 ** 4000 * 10 ** 4000 * 10 ** 4000",
        "x = 'a' * 10 ** 9",
        "x = 'a'\n" + "x = x + x\n" * 40,
        "x = [1]\n" + "x = [x, x]\n" * 40,
        "x = dict(a=1)\n" + "x = dict(a=x, b=x)\n" * 40,
        "x = " + "-" * 50_000 + "1",
        "x = " + "[" * 50_000 + "]" * 50_000,
        "x = " + "(" * 500 + "1" + ")" * 500,
        "x = 1 / 0",
        "x = -8 ** 0.5 + (-8) ** 0.5",
        "\0",
    ],
    ids=range(13),
)
def test_hostile_configs_are_refused_or_left(text: str) -> None:
    try:
        found = read_python(text, "x.py").values
    except UserError as error:
        assert str(error).count("\n") == 0
        assert "x.py" in str(error)
    else:
        assert all(len(str(value)) < 20_000 for value in found.values())
