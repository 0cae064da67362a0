"""Samples of a task: its files, in every format; tokens, labels, cuts and rejected rows; the step."""

import csv
import gzip
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.added_tokens import SPECIAL_MAP
from gpt2train.data.chat import Chat
from gpt2train.data.chat_template import FILE, ChatTemplate, default_template
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id, load_tokenizer, save_tokenizer
from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, Manifest
from tasks.core.input_files import find_inputs
from tasks.finetune.encoding import Encoding, Rejected, Sample, shorten, sort_labels
from tasks.finetune.rows import Row, read_rows
from tasks.finetune.settings import read_task
from tasks.finetune.step import TaskFiles, TaskSettings, check_template, samples
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.tasks.corpus import Inline, rejected_of


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpe")
    save_tokenizer(folder, *small_tables())
    return folder


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture(scope="module")
def chat(tokenizer: Tokenizer) -> Iterator[Chat]:
    """The template of a model that has none."""
    with Chat(default_template(tokenizer, "\n"), tokenizer) as one:
        yield one


def task(kind: str = "classification", **data: Any) -> TaskSettings:
    settings = {key: data.pop(key) for key in ("separator", "both_orders", "prompt_end", "max_length") if key in data}
    return build(TaskSettings, {"kind": kind, "data": {"train": "x", **data}, **settings})


def encoded(
    settings: TaskSettings, tokenizer: Tokenizer | Chat, *values: dict[str, Any], length: int = 20
) -> list[Sample | Rejected]:
    chat = tokenizer if isinstance(tokenizer, Chat) else None
    encoding = Encoding(settings, ("no", "yes"), chat.tokenizer if chat else tokenizer, length, chat)
    return encoding([Row(number, row) for number, row in enumerate(values, 1)], "file.tsv")


def test_a_pair_is_both_texts_with_the_separator_between(tokenizer: Tokenizer) -> None:
    [one] = encoded(task(pair="pair"), tokenizer, {"text": "the cat", "pair": "a dog", "label": "yes"})
    parts = encode_ordinary(tokenizer, ["the cat", "\n", "a dog"])
    assert one == Sample([[token for part in parts for token in part], [1]])
    [one] = encoded(task(), tokenizer, {"text": "the <|endoftext|>", "label": 0})
    assert isinstance(one, Sample) and end_of_text_id(tokenizer) not in one.sequences[0]


def test_labels_are_names_or_numbers(tokenizer: Tokenizer) -> None:
    for label, number in (("yes", 1), (" no ", 0), (1, 1), (1.0, 1), (True, 1), ("0", 0)):
        [one] = encoded(task(), tokenizer, {"text": "the", "label": label})
        assert isinstance(one, Sample) and one.sequences[1] == [number], label
    for label in (None, "", -1):
        [one] = encoded(task(), tokenizer, {"text": "the", "label": label})
        assert isinstance(one, Rejected) and one.reason == "no_label", label
    said = r"file\.tsv, row 1: the label '.*' is none of no, yes; correct it, or data"
    for label in (2, "maybe", "-2", 0.5):  # none of the task ends it
        with pytest.raises(UserError, match=said):
            encoded(task(), tokenizer, {"text": "the", "label": label})
    assert sort_labels({"10", "9", "-1"}) == ("-1", "9", "10") and sort_labels({"b", "10", "9"}) == ("10", "9", "b")


def test_a_pair_with_a_missing_side_is_rejected(tokenizer: Tokenizer) -> None:
    good = {"text": "a", "pair": "b", "label": "no"}
    wrong = ({"pair": None}, {"pair": " "}, {"text": 5}, {"text": "a\ud800"})
    rows = [{"text": "a", "label": "no"}, *(good | one for one in wrong), good]
    *rejected, last = encoded(task(pair="pair"), tokenizer, *rows)
    reasons = [one.reason for one in rejected if isinstance(one, Rejected)]
    assert reasons == ["no_text"] * 4 + ["invalid_utf8"] and isinstance(last, Sample)


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=2), st.integers(0, 30))
def test_texts_are_cut_one_token_at_a_time_from_the_longer_one(texts: list[list[int]], limit: int) -> None:
    expected = [list(text) for text in texts]
    while sum(map(len, expected)) > limit:
        longest = expected[0] if len(expected) == 1 or len(expected[0]) > len(expected[1]) else expected[1]
        longest.pop()
    assert shorten(texts, limit) == expected


@given(st.data())
def test_samples_fit_and_answers_are_whole(chat: Chat, data: Any) -> None:
    text = st.text("abcd the", min_size=1, max_size=30).filter(str.strip)
    turns = data.draw(st.lists(st.tuples(text, text), min_size=1, max_size=3))
    length = data.draw(st.integers(4, 60))
    pairs = [zip(("user", "assistant"), turn, strict=True) for turn in turns]
    messages = [{"role": role, "content": content} for pair in pairs for role, content in pair]
    [one] = encoded(task("answers", messages="messages"), chat, {"messages": messages}, length=length)
    whole = chat.turns(messages)
    assert all(ids[-1] == end_of_text_id(chat.tokenizer) for ids in whole[1::2])
    if isinstance(one, Rejected):
        assert one.reason == "too_long" and len(whole[-1]) > length
        return
    assert len(one.sequences) % 2 == 0 and sum(map(len, one.sequences)) <= length + 1
    kept = whole[-len(one.sequences) :]
    assert one.sequences[1::2] == kept[1::2]
    assert one.truncated == (one.sequences != whole)
    assert one.sequences[0] and kept[0][-len(one.sequences[0]) :] == one.sequences[0]


def test_a_prompt_and_its_answer_are_a_conversation(chat: Chat, tokenizer: Tokenizer) -> None:
    """The bytes of a model without a template are those of the texts, each with its end."""
    parts = encode_ordinary(tokenizer, ["the <|endoftext|> cat\n", "a dog"])
    expected = Sample([parts[0], [*parts[1], end_of_text_id(tokenizer)]])
    row = {"prompt": "the <|endoftext|> cat", "answer": "a dog"}
    messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
    assert encoded(task("answers"), chat, row, length=60) == [expected]
    followed = [*messages, {"role": "user", "content": "the"}]  # nothing is learned from it
    assert encoded(task("answers", messages="m"), chat, {"m": messages}, {"m": followed}, length=60) == [expected] * 2
    parts_of = [{**one, "content": [{"type": "text", "text": text} for text in one["content"]]} for one in messages]
    assert encoded(task("answers", messages="m"), chat, {"m": parts_of}, length=60) == [expected]
    system = [{"role": "system", "content": "of"}, *messages, *messages]
    [cut] = encoded(task("answers", messages="m"), chat, {"m": system}, length=sum(map(len, parts)) + 4)
    assert isinstance(cut, Sample) and cut.truncated and len(cut.sequences) == 2
    assert tokenizer.decode(cut.sequences[0]).startswith("of\nthe")


def test_answers_of_weight_0_are_not_learned(chat: Chat) -> None:
    said = [{"role": role, "content": "the"} for role in ("user", "assistant") * 3]
    rows = [{"m": [one | {"weight": int(at == learned)} for at, one in enumerate(said)]} for learned in (1, 3, 5)]
    [every] = encoded(task("answers", messages="m"), chat, {"m": said}, length=60)
    assert isinstance(every, Sample)
    for at, one in zip((1, 3, 5), encoded(task("answers", messages="m"), chat, *rows, length=60), strict=True):
        assert isinstance(one, Sample)
        assert one.sequences == [[token for part in every.sequences[:at] for token in part], every.sequences[at]]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_text"),
        ("text", "no_text"),
        ([{"role": "user", "content": "a"}], "no_answer"),
        ([{"role": "assistant", "content": "a", "weight": 0}], "no_answer"),
        ([{"role": "tool", "content": "a"}, {"role": "assistant", "content": "a"}], "template"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}], "template"),
        ([{"role": "user"}], "no_text"),
        ([{"role": "user", "content": [{"type": "text", "text": " "}]}], "no_text"),
        ([{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "a"}], "template"),
        ([{"content": "a"}], "no_text"),
        ([{"role": "user", "content": "\ud800"}], "invalid_utf8"),
    ],
)
def test_conversations_without_an_answer_are_rejected(chat: Chat, messages: Any, reason: str) -> None:
    [one] = encoded(task("answers", messages="m"), chat, {"m": messages})
    assert isinstance(one, Rejected) and one.reason == reason


def test_tools_are_kept_or_refused(tokenizer: Tokenizer) -> None:
    text = "{{ tools | tojson if tools and keeps }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    row = {"m": [{"role": "assistant", "content": "a"}], "t": [{"function": {"name": "add"}}]}
    settings, tokens = task("answers", messages="m", tools="t"), {"eos_token": "<|endoftext|>"}
    for keeps in ("yes", ""):
        with Chat(ChatTemplate(text, tokens | {"keeps": keeps}), tokenizer) as chat:
            [one] = encoded(settings, chat, row, length=60)
            if keeps:
                assert isinstance(one, Sample) and '"add"' in tokenizer.decode(one.sequences[0])
            else:
                assert isinstance(one, Rejected) and one.reason == "template"
                assert one.detail.startswith("the chat template leaves out a tool; leave it out too, or give another")
            text_of_tools = encoded(settings, chat, row | {"t": "[]"}, length=60)
            assert text_of_tools == [Rejected("template", "t is no list of tools")]
    with pytest.raises(UserError, match=r"data\.tools is for conversations"):
        task("answers", tools="t")


def test_the_template_of_a_model_is_that_of_its_samples(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = Path(shutil.copytree(tokenizer_folder, tmp_path / "model"))
    settings = task("answers", train=write(tmp_path, "rows.jsonl", [{"prompt": "the", "answer": "a"}]))
    plain = prepared(tmp_path, folder, settings, length=60)
    assert (tmp_path / "out/task" / FILE).read_text().startswith("{% for message in messages %}")
    (folder / FILE).write_text("{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ eos_token }}{% endfor %}")
    own = prepared(tmp_path, folder, settings, length=60)
    assert own.fingerprint != plain.fingerprint
    data, texts = open_tokens(tmp_path / "out/task/train"), load_tokenizer(folder)
    found = [texts.decode(data[number].tolist(), skip_special_tokens=False) for number in range(len(data))]
    assert found == ["user: the<|endoftext|>", "assistant: a<|endoftext|>"]  # no add_generation_prompt in it
    assert (tmp_path / "out/task" / FILE).read_bytes() == (folder / FILE).read_bytes()
    assert json.loads((tmp_path / "out/task" / SPECIAL_MAP).read_text())["eos_token"] == "<|endoftext|>"
    with pytest.raises(UserError, match=r"prompt_end is for a model without a chat template, and .*model has one"):
        prepared(tmp_path, folder, task("answers", train=settings.data.train, prompt_end=" "))
    (folder / FILE).write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(UserError, match=r"model: the chat template ends an answer with no special token"):
        check_template(settings, folder, None)
    (folder / FILE).write_text("{{ raise_exception('no rows today') }}")
    reason = r"that can be used \(template 1\): the chat template .*: no rows today; check "
    with pytest.raises(UserError, match=reason):
        prepared(tmp_path, folder, settings)


def prepared(folder: Path, tokenizer_folder: Path, settings: TaskSettings, length: int = 12) -> Manifest:
    with Inline(workers=1) as runner:
        return samples(Folder(folder / "out"), settings, TaskFiles(settings), tokenizer_folder, "model", length, runner)


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_step_writes_token_files_labels_and_rejected_rows(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = [{"text": f"the {number} " * (1 + 9 * (number == 3)), "label": "ab"[number % 2]} for number in range(10)]
    train = write(tmp_path, "train.jsonl", [*rows, {"text": "", "label": "a"}, {"text": "the"}])
    test = write(tmp_path, "test.jsonl", [{"text": "the"}, {"text": "a", "label": "b"}])
    settings = task(train=train, test=test)
    manifest = prepared(tmp_path, tokenizer_folder, settings)
    facts = manifest.outcome.facts
    assert (facts["labels"], facts["train_samples"], facts["train_truncated"], facts["test_samples"]) == (2, 10, 1, 2)
    assert manifest.outcome.reasons == {"no_label": 1, "no_text": 1}
    assert [row["id"] for row in rejected_of(Folder(tmp_path / "out"), manifest)] == ["11", "12"]
    folder = tmp_path / "out/task"
    assert json.loads((folder / "labels.json").read_text()) == ["a", "b"]
    data = open_tokens(folder / "train")
    assert np.diff(data.documents).tolist() == [2] * 10 and max(data.lengths) == 12
    assert [int(data[2 * number + 1][0]) for number in range(10)] == [0, 1] * 5
    places = [json.loads(line) for line in (folder / "test.rows").read_text().splitlines()]
    assert places == [{"file": "test.jsonl", "row": 1, "labelled": False}, {"file": "test.jsonl", "row": 2}]
    # Nothing is repeated, wherever the files are; another model is another training.
    again = task(train=str(Path(train).rename(tmp_path / "moved.jsonl")), test=test)
    with Inline(workers=1) as runner:
        inputs = (Folder(tmp_path / "out"), again, TaskFiles(again), tokenizer_folder)
        assert samples(*inputs, "model", 12, runner) == manifest
        assert samples(*inputs, "other", 12, runner) != manifest


def test_training_pairs_are_also_there_with_their_texts_exchanged(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = [{"text": f"the {n}", "pair": f"of {n * n} a", "label": n % 2} for n in range(30)]
    rows += [{"text": row["pair"], "pair": row["text"], "label": row["label"]} for row in rows[:9]]  # already exchanged
    train = write(tmp_path, "train.jsonl", [*rows, {"text": "the", "label": 0}])
    with pytest.raises(UserError, match=r"both_orders exchanges the texts of pairs; name data\.pair, or"):
        task(both_orders=True)
    plain = task(train=train, pair="pair", holdout=0.3)
    assert "both_orders" not in plain.model_dump()  # older samples keep their fingerprint
    both = task(train=train, pair="pair", test=train, holdout=0.3, both_orders=True)
    outcome = prepared(tmp_path, tokenizer_folder, both, length=40).outcome
    count = outcome.facts["train_samples"] // 2
    assert outcome.reasons == {"no_text": 2} and outcome.facts["test_samples"] == 39
    assert (outcome.seen, outcome.kept) == (39 + 39 + 2, 39 + 39)  # rows
    assert count + outcome.facts["valid_samples"] == 39
    texts = load_tokenizer(tokenizer_folder)
    found = {}
    for part in ("train", "valid"):
        data = open_tokens(tmp_path / "out/task" / part)
        pairs = [texts.decode(data[number].tolist()) for number in range(0, len(data), 2)]
        found[part] = [tuple(pair.split("\n")) for pair in pairs]
        labels = [int(data[number][0]) for number in range(1, len(data), 2)]
        assert labels == [_number(pair) % 2 for pair in found[part]]
    assert len(found["train"]) == 2 * count and found["train"][1::2] == [pair[::-1] for pair in found["train"][::2]]
    assert not {*found["train"]} & {*found["valid"]}
    places = [json.loads(line) for line in (tmp_path / "out/task/train.rows").read_text().splitlines()]
    assert [place["row"] for place in places[::2]] == [place["row"] for place in places[1::2]]
    assert [place.get("exchanged", False) for place in places] == [False, True] * count
    assert prepared(tmp_path, tokenizer_folder, plain, length=40).outcome.facts["train_samples"] < 2 * count


def _number(pair: tuple[str, ...]) -> int:
    return int(next(text for text in pair if text.startswith("the")).split()[1])


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_holdout_shares_no_text_with_the_training(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = [{"prompt": f"the {number % 40}", "answer": f"a{number}"} for number in range(200)]
    chats = [{"messages": [_said("user", row["prompt"]), _said("assistant", row["answer"])]} for row in rows]
    twice = [{"text": f"the {number % 40}", "label": number % 2} for number in range(200)]
    for kind, values, more in (
        ("answers", rows, {}),
        ("answers", chats, {"messages": "messages"}),
        ("classification", twice, {}),
    ):
        settings = task(kind, train=write(tmp_path, f"{kind}.jsonl", values), holdout=0.3, **more)
        facts = prepared(tmp_path, tokenizer_folder, settings).outcome.facts
        assert facts["train_samples"] + facts["valid_samples"] == 200 and 20 < facts["valid_samples"] < 100
        train, valid = (open_tokens(tmp_path / "out/task" / part) for part in ("train", "valid"))
        texts = [{tuple(data[number].tolist()) for number in range(0, len(data), 2)} for data in (train, valid)]
        assert not texts[0] & texts[1]


@pytest.mark.parametrize(
    ("rows", "data", "said"),
    [
        ([{"text": " " * n, "label": n} for n in (0, 1)], {}, "no row that can be used (no_text 2): text is empty;"),
        ([{"text": "the", "label": 1}], {}, "'label' has 1 labels; a classification needs two or more"),
        ([{"text": "the", "class": 1}], {}, "has no column 'label'; it has 'text', 'class'; name it in data.label"),
        ([{"text": "the", "label": 7}], {"labels": [0, 1]}, "row 1: the label '7' is none of 0, 1"),
    ],
)
def test_wrong_rows_are_one_line(tmp_path: Path, tokenizer_folder: Path, rows: Any, data: Any, said: str) -> None:
    settings = task(train=write(tmp_path, "train.jsonl", rows), **data)
    with pytest.raises(UserError) as refused:
        TaskFiles(settings).check(settings)
        prepared(tmp_path, tokenizer_folder, settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)


# Text of a value that a line can hold.
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\ufeff")
VALUE = st.text(LETTERS, min_size=1).filter(str.strip)


def rows_of(path: Path, settings: TaskSettings) -> list[Row]:
    [file] = find_inputs([str(path)], "data.train", ())
    return list(read_rows(file, settings))


@given(st.lists(st.tuples(VALUE, VALUE, VALUE), min_size=1, max_size=9), st.booleans())
def test_every_format_gives_the_same_rows(values: list[tuple[str, str, str]], mark: bool) -> None:
    names = ("text", "pair", "label")
    expected = [dict(zip(names, row, strict=True)) for row in values]
    begin = "\ufeff" if mark else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = ["\t".join(row) for row in (names, *values)]
        (folder / "a.tsv").write_text(begin + "\r\n".join(lines) + "\n", encoding="utf-8", newline="")
        quoted = io.StringIO()
        csv.writer(quoted).writerows([names, *values])
        (folder / "a.csv").write_text(begin + quoted.getvalue(), encoding="utf-8", newline="")
        objects = "".join(json.dumps(row) + "\n" for row in expected)
        (folder / "a.jsonl").write_text(begin + objects, encoding="utf-8")
        (folder / "a.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False), encoding="utf-8")
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(objects.encode()))
        table = pa.Table.from_pylist(expected)
        pq.write_table(table, folder / "a.parquet")
        for file, opened in (("stream.arrow", pa.ipc.new_stream), ("file.arrow", pa.ipc.new_file)):
            with opened(str(folder / file), table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
        files = ("a.tsv", "a.csv", "a.jsonl", "a.json", "a.jsonl.gz", "a.parquet", "stream.arrow", "file.arrow")
        for file in files:
            assert [row.values for row in rows_of(folder / file, task(pair="pair"))] == expected, file


def test_quotes_are_text_in_tabs_and_enclose_values_in_commas(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('text\tlabel\n"He said\t1\nno" end\t0\n')
    assert [row.values["text"] for row in rows_of(tmp_path / "a.txt", task())] == ['"He said', 'no" end']
    (tmp_path / "a.csv").write_text('text,label\n"one, two\nlines ""quoted""",1\n')
    assert [row.values["text"] for row in rows_of(tmp_path / "a.csv", task())] == ['one, two\nlines "quoted"']
    (tmp_path / "b.tsv").write_text('text\tlabel\n"a\tb"\t1\n')
    assert [row.values["text"] for row in rows_of(tmp_path / "b.tsv", task(quotes=True))] == ["a\tb"]
    (tmp_path / "c.csv").write_text("1,one\n0,two\n")  # its columns are named in the task
    rows = rows_of(tmp_path / "c.csv", task(columns=["label", "text"]))
    assert [row.values for row in rows] == [{"label": "1", "text": "one"}, {"label": "0", "text": "two"}]


def test_rows_that_cannot_be_read_have_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\none\t1\nshort\n\n\xff\t1\nlong\t1\t2\n")
    reasons = [row.reason for row in rows_of(tmp_path / "a.tsv", task())]
    assert reasons == ["", "wrong_columns", "invalid_utf8", "wrong_columns"]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one", "label": 1}\n[1]\n{"text"\n\xff\n\n{"text": "b"}\n')
    found = {row.number: row.reason for row in rows_of(tmp_path / "a.jsonl", task())}
    assert found == {1: "", 2: "invalid_json", 3: "invalid_json", 4: "invalid_utf8", 6: ""}


HEAD = "it has 'text', 'label'; name it in data."


def twice() -> bytes:
    """Parquet with two columns of a name."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array([1])], ["text", "text", "label"])
    pq.write_table(table, sink := io.BytesIO())
    return sink.getvalue()


def dated(kind: pa.DataType) -> bytes:
    """Parquet with a date that Python cannot express."""
    pq.write_table(pa.table({"text": ["a"], "label": pa.array([2**62], kind)}), sink := io.BytesIO())
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "data", "said"),
    [
        ("a.tsv", b"text\tlabel\na\tb\n", {"text": "sentence"}, f"no column 'sentence'; {HEAD}"),
        ("a.tsv", b"text\tlabel\na\tb\n", {"pair": "two"}, f"no column 'two'; {HEAD}p"),
        ("a.tsv", b"text\tlabel\ttext\na\t1\tb\n", {}, "has several columns 'text'; rename all but one"),
        ("a.csv", b"text,label,label\na,1,0\n", {}, "has several columns 'label'; rename all but one"),
        ("a.parquet", twice(), {}, "has several columns 'text'; rename all but one"),
        ("a.tsv", b"text\tlabel\n", {}, "has no rows that can be read as tsv"),
        ("a.tsv", b"", {}, "has no rows that can be read as tsv"),
        ("a.json", b"[]", {}, "has no rows that can be read as json"),
        ("a.json", b"[1, 2", {}, "is not JSON"),
        ("a.csv", b'text,label\n"a,1\n', {}, "set data.quotes = false"),
        ("a.csv", b"text,label\n\xff,1\n", {}, "after row 0: it is not UTF-8"),
        ("a.csv", "text,label\nx,1\n".encode("utf-16"), {}, "after row 0: it is UTF-16, not UTF-8; convert it"),
        ("a.parquet", b"no parquet", {}, "is not a valid Parquet file"),
        ("a.arrow", b"no Arrow", {}, "is not a valid Arrow file after row 0 ("),
        ("a.parquet", dated(pa.timestamp("us", "Mars/Phobos")), {}, "after row 0 ('Mars/Phobos')"),
        ("a.parquet", dated(pa.timestamp("ms")), {}, "is not a valid Parquet file after row 0 ("),
        ("a.xyz", b"text", {}, "no format has the suffix '.xyz'"),
        ("a.tsv.gz", b"no gzip", {}, "is not a complete .gz file"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, name: str, content: bytes, data: dict[str, Any], said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        rows_of(tmp_path / name, task(**data))
    assert said in str(refused.value) and "\n" not in str(refused.value)


TEXT, LABELS = "kind = 'text'\n[data]\ntrain = 'a'\n", "kind = 'classification'\n[data]\ntrain = 'a'\nlabels = "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind = 'x'\n[data]\ntrain = 'a'", "kind: input should be 'classification', 'answers' or 'text'"),
        ("[data]\ntrain = 'a'", "is not a task file: it has no kind"),
        ("kind = 'text'", "is not a task file: it has no [data]"),
        (f"{TEXT}labels = ['a', 'b']", "are for classification, not for text"),
        (f"{TEXT}messages = 'm'", "data.messages is for answers"),
        (f"{LABELS}['a']", "1 labels; a classification has from 2"),
        (f"{LABELS}['a', 'a']", "a label is given twice"),
        (f"{TEXT}valid = 'b'\nholdout = 0.1", "valid and holdout both give"),
        ("kind = 'text'\n[data]\ntrian = 'a'", "data.train"),
        ("kind = ", "is not valid TOML"),
        ('{"text": "a"}', "rows.jsonl is not a task file, which is TOML with a kind and [data]; give one that names"),
    ],
)
def test_wrong_task_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    name = "rows.jsonl" if text.startswith("{") else "task.toml"
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as refused:
        read_task(str(tmp_path / name))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_paths_are_relative_to_the_task_file(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text("kind = 'text'\n[data]\ntrain = ['a', '/b', 's3://c/d']\ntest = 'e'\n")
    data = read_task(str(tmp_path / "task.toml")).data
    assert data.train == (f"{tmp_path}/a", "/b", "s3://c/d") and data.test == (f"{tmp_path}/e",) and data.valid == ()
    numbers = build(TaskSettings, {"kind": "classification", "data": {"train": "a", "labels": [0, 1, 2]}})
    assert numbers.data.labels == ("0", "1", "2")
