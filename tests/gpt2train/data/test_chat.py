"""Conversations as token ids, compared with transformers' `apply_chat_template`; and templates that would run on."""

import contextlib
import inspect
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from gpt2train.data import chat_template
from gpt2train.data.added_tokens import CONFIG, SPECIAL_MAP
from gpt2train.data.chat import Chat, open_chat, without_first_turn
from gpt2train.data.chat_template import (
    FILE,
    ChatRenderer,
    ChatTemplate,
    ChatTemplateError,
    copy_chat_template,
    default_template,
    read_chat_template,
    template_text,
)
from gpt2train.data.tokenizer import Tokenizer, build_tokenizer, encode_ordinary, load_tokenizer
from gpt2train.errors import RunError, UserError
from tests.gpt2train.data.test_tokenizer import small_tables

SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
# In the style of published ones: the end of an answer, and the template.
TEMPLATES = {
    "chatml": (
        "<|im_end|>",
        """{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}""",
    ),
    "llama2": (
        "</s>",
        """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set first = messages[0]['content'] %}
{% else %}{% set rest = messages %}{% set first = false %}{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if message['role'] == 'user' %}
{{- bos_token + '[INST] ' }}
{%- if loop.first and first %}{{- '<<SYS>>\\n' + first + '\\n<</SYS>>\\n\\n' }}{% endif %}
{{- message['content'].strip() + ' [/INST]' }}
{%- else %}{{- ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}""",
    ),
    "llama3": (
        "<|eot_id|>",
        """{{- '<|begin_of_text|>' }}
{%- set today = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    ),
    "mistral": (
        "</s>",
        """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}
{%- endif %}{% endfor %}""",
    ),
    "alpaca": (
        "</s>",
        """{% for message in messages %}
{%- if message.role == 'system' %}{{ message.content ~ '\\n\\n' }}
{%- elif message.role == 'user' %}{{ '### Instruction:\\n' ~ message.content ~ '\\n\\n### Response:\\n' }}
{%- else %}{{ message.content ~ eos_token ~ '\\n\\n' }}{% endif %}{% endfor %}""",
    ),
    "tools": (
        "<|im_end|>",
        """{%- if tools %}{{- '<|im_start|>system\\n' }}{% for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(calls=0) %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{- message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{% set ns.calls = ns.calls + 1 %}
{{- '\\n<call ' ~ ns.calls ~ '>' ~ call.function | tojson(indent=1) }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}""",
    ),
    "marked": (
        "<|im_end|>",
        """{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{% else %}{% if message.role not in ('user', 'system') %}{% continue %}{% endif %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    ),
}
PIECES = (
    *("the", " cat", "a", " ", "  ", "\n", "\n\n", "\t", "é", "中文", "🙂", "'s", "12"),
    *('"', "{{ x }}", "[INST]", "<b>", ".", "\\"),
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "default": None}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    tokenizer = build_tokenizer(*small_tables())
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.save(str(made / "tokenizer.json"))
    (made / CONFIG).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **NAMED}))
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def text(rng: random.Random, special: bool) -> str:
    pieces = [rng.choice(PIECES) for _ in range(rng.randint(1, 8))]
    if special and rng.random() < 0.3:
        pieces.insert(rng.randint(0, len(pieces)), rng.choice(SPECIAL))
    return "".join(pieces) if "".join(pieces).strip() else "the"


def conversation(rng: random.Random, special: bool, tools: bool) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": text(rng, special)}] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": text(rng, special)})
        if tools and rng.random() < 0.5:
            call = {"type": "function", "function": {"name": "add", "arguments": {"a": text(rng, special), "b": None}}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "name": "add", "content": text(rng, special)})
        messages.append({"role": "assistant", "content": text(rng, special)})
    return messages


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_transformers(name: str, count: int, folder: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    end, template = TEMPLATES[name]
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    sanitizes = "sanitize_control_tokens" in inspect.signature(peer.apply_chat_template).parameters
    rng, refused, spelled = random.Random(name), 0, 0

    def theirs(messages: list[dict[str, Any]], tools: Any, prompt: bool = False) -> list[int]:
        more: dict[str, Any] = {"sanitize_control_tokens": True} if sanitizes else {}
        more |= {"add_generation_prompt": prompt, "return_dict": False}
        return list(peer.apply_chat_template(messages, chat_template=template, tools=tools, **more))

    with Chat(ChatTemplate(template, NAMED), tokenizer) as chat:
        assert chat.end == tokenizer.token_to_id(end)
        for _ in range(count):
            messages = conversation(rng, sanitizes, name == "tools")
            tools = [TOOL] if name == "tools" and rng.random() < 0.5 else None
            try:
                expected = theirs(messages, tools)
            except Exception as error:  # noqa: BLE001 - what jinja raises
                refused += 1
                with pytest.raises(ChatTemplateError, match=f"cannot be applied: {error}"):
                    chat.turns(messages, tools)
                continue
            if messages[0]["role"] == "system" and name == "mistral":  # which says nothing of it
                refused += 1
                messages[0]["content"] = "of no other message"
                with pytest.raises(ChatTemplateError, match="leaves out the message 0 of the role system"):
                    chat.turns(messages, tools)
                continue
            found = chat.turns(messages, tools)
            ids = [one for part in found for one in part]
            assert ids == expected[: len(ids)]
            assert tokenizer.decode(expected[len(ids) :], skip_special_tokens=False).strip() == ""
            answers = [one for one in messages if one["role"] == "assistant"]
            assert len(found) == 2 * len(answers)
            for part, answer in zip(found[1::2], answers, strict=True):  # the loss is on what the assistant says
                assert part[-1] == chat.end and part.count(part[-1]) == 1
                said = tokenizer.decode(part[:-1], skip_special_tokens=False)
                if answer["content"] is not None:
                    assert said.strip() == answer["content"].strip()
                else:
                    assert '"name": "add"' in said
            spelled += any(one in str(messages) for one in SPECIAL)
            if tools is None:
                assert chat.prompt(messages[:-1]) == theirs(messages[:-1], None, prompt=True)
    assert refused < count / 2 and (spelled > count / 30 or not sanitizes)


def test_an_answer_ends_where_the_prompt_begins_more_than_it(tokenizer: Tokenizer) -> None:
    """A prompt that opens `<think>`, which the text of a conversation leaves out, as DeepSeek-R1's and QwQ's."""
    end, template = TEMPLATES["chatml"]
    more = "{% if add_generation_prompt %}<think>\n{% endif %}"
    with Chat(ChatTemplate(template + more, NAMED), tokenizer) as chat:
        assert chat.end == tokenizer.token_to_id(end)
        with pytest.raises(ChatTemplateError, match="does not keep what it writes"):
            chat.check()


def test_a_named_token_is_special_as_in_transformers(tmp_path: Path) -> None:
    """An end that the vocabulary has as any other word."""
    transformers = pytest.importorskip("transformers")
    vocab, merges = small_tables()
    other = build_tokenizer(vocab | {"</s>": len(vocab)}, merges)
    other.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / CONFIG).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **NAMED}))
    (tmp_path / FILE).write_text(TEMPLATES["alpaca"][1])
    messages = [{"role": "user", "content": "a </s>"}, {"role": "assistant", "content": "the"}]
    chat = open_chat(tmp_path, load_tokenizer(tmp_path), needed=True)
    assert chat is not None
    with chat:
        ids = [one for part in chat.turns(messages) for one in part]
        assert ids[-1] == chat.end == len(vocab) and ids.count(len(vocab)) == 1
        messages[0]["content"] = "a"
        ids = [one for part in chat.turns(messages) for one in part]
        peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert peer.apply_chat_template(messages, return_dict=False)[: len(ids)] == ids


def test_special_tokens_of_a_message_are_text(folder: Path, tokenizer: Tokenizer) -> None:
    """The markers around them are in no prompt, also where a message has them."""
    with Chat(ChatTemplate(TEMPLATES["chatml"][1], NAMED), tokenizer) as chat:
        ids = chat.prompt([{"role": "user", "content": "a<|im_end|>\ufdd0b\ufdd1<\ufdd0|im_end|>"}])
        end = tokenizer.token_to_id("<|im_end|>")
        assert ids.count(end) == 1
        assert tokenizer.decode(ids, skip_special_tokens=False).split("\n")[1] == "a<|im_end|>b<|im_end|><|im_end|>"


def test_the_default_is_the_prompt_its_end_and_the_answer(tokenizer: Tokenizer) -> None:
    with Chat(default_template(tokenizer, ' "\n'), tokenizer) as chat:
        chat.check()
        user, answer = {"role": "user", "content": "the cat "}, {"role": "assistant", "content": " a"}
        parts = encode_ordinary(tokenizer, ['the cat  "\n', " a"])
        end = tokenizer.token_to_id("<|endoftext|>")
        assert chat.turns([user, answer, user]) == [parts[0], [*parts[1], end]]
        assert chat.prompt([user]) == parts[0]
        with pytest.raises(ChatTemplateError, match="a message is of the user, the assistant or the system"):
            chat.prompt([{"role": "tool", "content": "a"}])


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "over 0.3 s of processor"),
        ("{{ 10 ** (10 ** 9) }}", "over 0.3 s of processor"),
        ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
        ("{{ '%0999999999d' % 1 }}", "MemoryError"),
        ("{{ messages[0].content * 2 ** 25 }}", "writes over 16,777,216 characters"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "Recursion"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", ""),
        ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, ""),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set ns = namespace() %}{% set ns.__init__ = 1 %}", "underscore"),
        ("{% set ns = namespace(__class__=1) %}", "underscore"),
        ("{% set _ = messages.append(1) %}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{% nothing %}", "unknown tag 'nothing'. in line 1"),
        ("{{ raise_exception('no\nsuch') }}", "no such"),
        ("{{ none + 1 }}", "unsupported operand"),
    ],
)
def test_a_hostile_template_ends_in_one_line(template: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    with contextlib.closing(ChatRenderer(ChatTemplate(template, {}))) as renderer:
        with pytest.raises((ChatTemplateError, RunError)) as refused:
            renderer.render([{"role": "user", "content": "a"}], [(1, True)])
        assert error.lower() in str(refused.value).lower() and "\n" not in str(refused.value)
        assert len(str(refused.value)) < 300


def test_the_process_of_a_template_is_started_again(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    template = "{{ 10 ** (10 ** (8 + messages | length)) if messages[0].content == 'loop' }}{{ messages[0].content }}"
    a, loop, b = ([{"role": "user", "content": said}] for said in ("a", "loop", "b"))
    with Chat(ChatTemplate(template, {}), tokenizer) as chat:
        assert tokenizer.decode(chat.prompt(a)) == "a"
        with pytest.raises(RunError, match="processor time"):
            chat.prompt(loop)
        assert tokenizer.decode(chat.prompt(b)) == "b" and chat.end is None


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "ends an answer with no special token"),
        ("{{ messages | length }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}", "does not keep"),
        ("{{ messages[-1].content + eos_token }}", "does not keep what it writes"),
        ("{% if 'assistant' != messages[-1].role %}{{ raise_exception('no') }}{% endif %}", "cannot be applied: no"),
    ],
)
def test_a_template_that_no_model_can_learn_is_refused(template: str, error: str, tokenizer: Tokenizer) -> None:
    with Chat(ChatTemplate(template, NAMED), tokenizer) as chat, pytest.raises(ChatTemplateError, match=error):
        chat.check()


def test_the_date_of_a_template_is_given_or_now(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}{{ messages[0].content }}", {})
    for date, year in (("2024-07-26", "2024"), (None, time.strftime("%Y"))):
        with Chat(template, tokenizer, date) as chat:
            assert tokenizer.decode(chat.prompt([{"role": "user", "content": "a"}])) == f"{year}a"


def test_the_template_of_a_folder(tmp_path: Path, folder: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert read_chat_template(tmp_path, tokenizer) is None and open_chat(tmp_path, tokenizer) is None
    with pytest.raises(UserError, match=r"has no chat template \(chat_template\.jinja, .*; fine-tune the model"):
        open_chat(tmp_path, tokenizer, needed=True)
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    config = {"chat_template": named, "bos_token": None, "eos_token": {"content": "</s>"}, "pad_token": "[none]"}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert read_chat_template(tmp_path, tokenizer) == ChatTemplate("d", {"eos_token": "</s>"})
    (tmp_path / FILE).write_text("file")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    copy_chat_template(tmp_path, tmp_path / "copy")
    assert {file.name for file in (tmp_path / "copy").iterdir()} == {FILE, SPECIAL_MAP, "tokenizer.json"}
    assert read_chat_template(tmp_path / "copy", tokenizer) == ChatTemplate("file", {"eos_token": "</s>"})
    (tmp_path / FILE).unlink()
    for damaged in ("[", '{"chat_template": [1]}', "[]"):
        (tmp_path / CONFIG).write_text(damaged)
        with pytest.raises(UserError, match="cannot read the chat template of"):
            template_text(tmp_path)


def test_the_first_turn_goes_with_the_answers_of_its_tools() -> None:
    roles = ("system", "user", "assistant", "tool", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles)]
    assert [one["content"] for one in without_first_turn(messages)] == list("0567")
    assert [one["content"] for one in without_first_turn(without_first_turn(messages))] == list("07")
    assert without_first_turn(messages[:2]) == without_first_turn(messages[:5]) == []


def test_the_template_for_ollama_writes_what_the_default_one_writes(tokenizer: Tokenizer) -> None:
    """That of the guide is in Go's language, of which it has three words; run by Go itself it wrote the same."""
    guide = Path(__file__).parents[3] / "docs/guides/chat.md"
    theirs = guide.read_text(encoding="utf-8").partition('TEMPLATE """')[2].partition('"""')[0]
    for go, jinja in (
        ("{{ range .Messages }}", "{% for message in messages %}"),
        ('{{ if eq .Role "assistant" }}', "{% if message.role == 'assistant' %}"),
        ("{{ .Content }}", "{{ message.content }}"),
        ("{{ else }}\n", "{% else %}{{ '\\n' }}"),  # Jinja leaves out a line's end after a block, Go does not
        ("{{ end }}{{ end }}", "{% endif %}{% endfor %}"),
    ):
        assert go in theirs
        theirs = theirs.replace(go, jinja)
    ours, texts = default_template(tokenizer, "\n"), []
    turns = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    for template in (ours, ChatTemplate(theirs, ours.tokens)):
        with Chat(template, tokenizer) as chat:
            texts.append(chat.renderer.render(turns, [(len(turns), True)]))
    assert texts[0] == texts[1]
