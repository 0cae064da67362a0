"""Token files made elsewhere: prefixes and weights, counts by part, tokenizer, and what is refused."""

from pathlib import Path

import pytest

from gpt2train.config import TrainSettings
from gpt2train.data.indexed import bin_path, idx_path
from gpt2train.data.tokenizer import save_tokenizer, tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.store.folder import Folder
from tasks.ready_tokens.step import ready_tokens, step_of
from tasks.ready_tokens.tokens import open_ready_tokens, parse_corpora
from tasks.train.step import check_ready_tokens, run_folder
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.gpt2train.indexed_writer import IndexedWriter
from tests.tasks.corpus import Inline


def write(folder: Path, name: str = "t", documents: int = 2456, tokenizer: bool = True) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with IndexedWriter(folder / name, "<u2") as writer:
        for number in range(documents):
            writer.add([number % 200] * (number % 9 + 1))
    if tokenizer:
        (folder / "tokenizer").mkdir(exist_ok=True)
        save_tokenizer(folder / "tokenizer", *small_tables())
    return str(folder / name)


def test_prefixes_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, found in {
        **{"/a/b": [("/a/b", 1)], "/a/b, /c": [("/a/b", 1), ("/c", 1)], "1 /a": [("/a", 1)]},
        **{"0.3 /a/b 0.7 /c": [("/a/b", 0.3), ("/c", 0.7)], "0 /a 1 /b 0.0 /c": [("/b", 1)]},
        "/my files/a": [("/my files/a", 1)],
    }.items():
        assert [(corpus.prefix, corpus.weight) for corpus in parse_corpora(text)] == found, text
    monkeypatch.chdir(tmp_path)
    assert parse_corpora("a")[0].prefix == str(tmp_path / "a")  # absolute: the ranks may start in another folder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.3 /a 0.7", "is not pairs of weight and prefix"),
        *(("0.3 /a b /c", "tokens: /c: weight"), ("-1 /a 1 /c", "tokens: /a: weight")),
        ("1e-12 /a 1 /c", "tokens: /a: weight: 1e-12 is below 1e-09; raise it, or give 0"),
        ("0 /a 0 /c", "all weights of '0 /a 0 /c' are 0"),
        *((text, "has an empty prefix") for text in ("/a,", "")),
    ],
)
def test_wrong_prefixes_are_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        parse_corpora(text)
    assert "\n" not in str(caught.value)


def test_the_counts_are_those_of_megatron(tmp_path: Path) -> None:
    found = open_ready_tokens(write(tmp_path), "700,200,100", None, None)
    assert [found.facts[f"{part}_documents"] for part in ("train", "valid", "test")] == [1719, 491, 246]
    tokens = sum(found.facts[f"{part}_tokens"] for part in ("train", "valid", "test"))
    assert tokens == sum(number % 9 + 1 for number in range(2456))
    assert found.vocab == 262 and found.tokenizer == tmp_path / "tokenizer"
    whole = open_ready_tokens(write(tmp_path), None, None, None)
    assert whole.facts["train_documents"] == 2456 and whole.facts["valid_tokens"] == whole.facts["test_tokens"] == 0

    # Each corpus is split by itself.
    tokens = f"0.3 {write(tmp_path, 'a', 10)} 0.7 {write(tmp_path, 'b', 100)}"
    found = open_ready_tokens(tokens, "8,1,1", None, None)
    assert [found.facts[f"{part}_documents"] for part in ("train", "valid", "test")] == [88, 11, 11]
    assert found.name == f"0.3 x {tmp_path}/a, 0.7 x {tmp_path}/b"


def test_the_tokenizer_or_its_size_must_be_known(tmp_path: Path) -> None:
    prefix = write(tmp_path / "bare", documents=30, tokenizer=False)
    other = Path(write(tmp_path / "other", documents=30)).parent / "tokenizer"
    with pytest.raises(UserError, match=r"bare/t has no tokenizer/ beside it; give --tokenizer DIR, .* --vocab N"):
        open_ready_tokens(prefix, None, None, None)
    sized = open_ready_tokens(prefix, None, None, 300)
    assert (sized.vocab, sized.tokenizer, sized.tokenizer_hash) == (300, None, None)
    given = open_ready_tokens(prefix, None, str(other), None)
    assert (given.vocab, given.tokenizer, given.tokenizer_hash) == (262, other, tokenizer_hash(other))
    padded = open_ready_tokens(prefix, None, str(other), 300)  # rows that stand for no token
    assert (padded.vocab, padded.tokenizer_hash) == (300, tokenizer_hash(other))
    with pytest.raises(UserError, match=r"vocab is 261, but the tokenizer .* has 262 tokens; leave vocab out"):
        open_ready_tokens(prefix, None, str(other), 261)
    with pytest.raises(UserError, match=r"there is no folder .*/none"):
        open_ready_tokens(prefix, None, str(tmp_path / "none"), None)


def test_raw_tokens_of_two_bytes_have_no_large_vocabulary(tmp_path: Path) -> None:
    """Raw tokens of four bytes, as copies of nanoGPT write them for Llama 3, would be read as twice as many."""
    (tmp_path / "x.bin").write_bytes(bytes(8))
    assert open_ready_tokens(str(tmp_path / "x.bin"), None, None, 65536).facts["train_tokens"] == 4
    for tokens, valid in (("x.bin", None), ("p", "x.bin")):
        write(tmp_path, "p", documents=30, tokenizer=False)
        with pytest.raises(UserError, match=r"x\.bin has tokens of two bytes, but .* 65,537 ids; give a pair"):
            open_ready_tokens(str(tmp_path / tokens), None, None, 65537, valid and str(tmp_path / valid))


def test_different_tokenizers_are_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", documents=30), write(tmp_path / "two", documents=30)
    assert open_ready_tokens(f"{one},{two}", None, None, None).vocab == 262
    vocab, merges = small_tables()
    fewer = {token: number for number, token in enumerate(list(vocab)[:-2] + list(vocab)[-1:])}
    save_tokenizer(tmp_path / "two" / "tokenizer", fewer, merges[:-1])
    for tokens, tokenizer in ((f"{one},{two}", None), (one, str(tmp_path / "two/tokenizer"))):
        with pytest.raises(UserError, match=r"the tokenizers .* and .* differ; all tokens of a run have one tokenizer"):
            open_ready_tokens(tokens, None, tokenizer, None)


def test_missing_and_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    """They are the user's own files: exit code 2, as for every wrong input."""
    prefix = write(tmp_path, documents=30)
    index, data = idx_path(prefix).read_bytes(), bin_path(prefix).read_bytes()
    changed = bytearray(index)
    changed[-8 * 31 - 3] ^= 1  # an offset
    for path, content, said in (
        (idx_path(prefix), index[:-9], "is truncated or damaged"),
        (idx_path(prefix), bytes(changed), "is damaged: its offsets"),
        (idx_path(prefix), b"TNTIDX\0\0" + index[8:], "does not start with MMIDIDX"),
        (bin_path(prefix), data[:-2], "is truncated"),
        (bin_path(prefix), None, r"t\.bin is missing; a token dataset is a pair"),
    ):
        before = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(UserError, match=said) as caught:
            open_ready_tokens(prefix, None, None, None)
        assert "\n" not in str(caught.value)
        path.write_bytes(before)
    with pytest.raises(UserError, match=r"none\.idx is missing"):
        open_ready_tokens(str(tmp_path / "none"), None, None, None)


def test_too_little_to_train_on_and_a_mixture_are_refused(tmp_path: Path) -> None:
    settings = build(TrainSettings, {"model": {"context": 32}})
    found = open_ready_tokens(write(tmp_path, documents=9), "1,9", None, None)
    with pytest.raises(UserError, match=r"the split leaves 1 document of .*/t to train, 1 token,"):
        check_ready_tokens(found, settings)
    mixed = build(TrainSettings, {"mixture": {"corpora": [{"prefix": "a"}]}})
    with pytest.raises(UserError, match=r"give these corpora and weights in --tokens"):
        check_ready_tokens(found, mixed)


def test_a_run_is_named_by_content_split_weights_and_tokenizer(tmp_path: Path) -> None:
    root, settings = Folder(tmp_path / "out"), TrainSettings()
    first = write(tmp_path / "first", documents=50)

    def folder(*given: str | int | None) -> str:
        with Inline(workers=1) as runner:
            manifest = ready_tokens(root, open_ready_tokens(*given), runner=runner)  # type: ignore[arg-type]
        return run_folder(manifest, None, settings, "tiny")

    name = folder(first, "8,1,1", None, None)
    moved = write(tmp_path / "moved", documents=50)
    assert folder(moved, "8,1,1", None, None) == folder(first, "8.0,1,1", None, None) == name
    bare = write(tmp_path / "bare", documents=50, tokenizer=False)
    others = [
        folder(first, "7,2,1", None, None),
        folder(write(tmp_path / "longer", documents=51), "8,1,1", None, None),
        folder(bare, "8,1,1", None, 262),
        folder(f"{first},{moved}", "8,1,1", None, None),
        folder(f"2 {first} 1 {moved}", "8,1,1", None, None),
    ]
    assert len({name, *others}) == 6


def test_the_step_is_cached_and_counts_what_it_found(tmp_path: Path) -> None:
    root, found = Folder(tmp_path / "out"), open_ready_tokens(write(tmp_path, documents=50), "8,1,1", None, None)
    with Inline(workers=1) as runner:
        manifest = ready_tokens(root, found, runner)
        assert ready_tokens(root, found, runner) == manifest == step_of(root, found).finished()
        assert "ready_tokens" in runner.skipped
    assert manifest.outcome.facts == found.facts and manifest.outcome.seen == manifest.outcome.kept == 50
    assert [path.name for path in (tmp_path / "out/ready_tokens").iterdir()] == ["_manifest.json"]


def test_mock_tokens_need_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "other", 5)  # its tokenizer lies in this folder, and is not that of mock tokens
    found = open_ready_tokens("mock", None, None, None)
    given = found.corpora[0].prefix, found.vocab, found.tokenizer, found.split
    assert given == ("mock:50257", 50257, None, "949,50,1")
    assert found.facts["train_documents"] == 1944 and found.facts["valid_tokens"] > 10_000
    assert open_ready_tokens("mock", "1", str(tmp_path / "tokenizer"), None).vocab < 1000
    (tmp_path / "other.idx").rename("mock.idx")  # files of this name are taken
    (tmp_path / "other.bin").rename("mock.bin")
    assert open_ready_tokens("mock", None, None, None).corpora[0].prefix == str(tmp_path / "mock")
