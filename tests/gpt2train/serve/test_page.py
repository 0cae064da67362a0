"""The web page in a real browser, on a real server."""

import json
import math
import re
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serve import OURS, server
from gpt2train.data.chat_template import FILE
from gpt2train.model.gpt2 import GPT2
from tests.chromium import chromium
from tests.gpt2train.runs.indexed_corpus import make_indexed
from tests.gpt2train.serve.fixed_text_model import SHAPE, write_reciting_model
from tests.tasks.corpus import row

pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install 'gpt2train[peers]'")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.slow  # a browser and a server

TEXT = "Grüße, <b>bold</b><img src=x onerror=alert(1)> 1 € & \u2028more.\n"
KEY = "open sesame"


class Page:
    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def at(self, name: str) -> Any:
        return self.driver.find_element(By.ID, name)

    def open(self, key: str = KEY, name: str = "page") -> None:
        self.driver.get(self.address + "/")
        self.until(lambda: self.at("key").is_displayed(), "the field for the key")
        self.fill(key=key + Keys.TAB)
        self.until(lambda: self.at("model").text.startswith(name), "the model's name")

    def fill(self, **fields: object) -> None:
        for name, value in fields.items():
            self.at(name).clear()
            if max(text := str(value), default="") > "\uffff":  # ChromeDriver types no characters beyond the BMP
                self.driver.execute_script("arguments[0].value = arguments[1]", self.at(name), text)
            else:
                self.at(name).send_keys(text)

    def go(self, **fields: object) -> None:
        self.fill(**fields)
        self.at("go").click()
        self.until(lambda: self.at("go").is_enabled(), "the end of the answer")

    def tokens(self) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, "#text .token"))

    def text(self) -> str:
        return str(self.driver.execute_script("return [...document.querySelectorAll('#text .token')]"
                                              ".map((one) => one.textContent).join('')"))  # fmt: skip

    def complaints(self) -> list[Any]:
        lines = self.driver.get_log("browser")
        return [line for line in lines if line["level"] not in ("INFO", "DEBUG") and " 401 " not in line["message"]]

    def ask(self, path: str, body: object = None) -> str:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(self.address + path, body and json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return str(response.read().decode())

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, f"waited in vain for {what}: {self.at('error').text}"
            time.sleep(0.03)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    write_reciting_model(folder / "model", TEXT)
    (folder / "key").write_text(f"{KEY}\n")
    flags = ["--key-file", str(folder / "key")]
    if find_spec("pydivsufsort"):
        rows = [row(f"{n}: {TEXT[:40]}{n}", f"https://a.test/{n}") for n in range(5)]
        flags += ["--trace", str(make_indexed(folder / "corpus", rows))]
    with chromium(folder, "1200,900") as driver, server(OURS, folder / "model", flags, threads=1) as (address, _):
        yield Page(driver, address)


def test_the_page_loads_nothing_from_other_hosts(page: Page) -> None:
    with urllib.request.urlopen(page.address + "/") as response:
        policy, body = response.headers["Content-Security-Policy"], response.read().decode()
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"(src|href)=.?(https?:)?//", body)
    page.open()
    loaded = page.driver.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert len(loaded) >= 3
    assert all(name.startswith(page.address + "/") for name in loaded)
    assert page.complaints() == []


def test_the_heading_shows_run_and_size(page: Page) -> None:
    """The name of the run, where the folder is called `model`, as after every merge."""
    page.open()
    [served] = json.loads(page.ask("/v1/models"))["data"]
    weights = sum(tensor.numel() for tensor in GPT2(SHAPE).parameters()) - (SHAPE.padded_vocab - SHAPE.vocab) * 64
    assert served["parameters"] == weights
    assert page.at("model").text == f"{served['id']} · {weights:,} parameters · context 4,096 tokens"
    assert served["id"].startswith("page")
    assert page.driver.title == f"{served['id']} · gpt2train"


def test_examples_and_a_command_line_show_what_to_do(page: Page) -> None:
    page.open()
    example = page.driver.find_element(By.CSS_SELECTOR, "#examples button")
    example.click()
    assert page.at("prompt").get_property("value") == example.text
    assert page.at("api").text == f"{page.address}/v1"
    command = shlex.split(page.at("curl").text.replace("KEY", KEY))
    done = subprocess.run([*command, "-sS", "--noproxy", "*"], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["choices"][0]["text"], done.stderr


def test_generated_text_is_escaped(page: Page) -> None:
    page.open()
    page.go(prompt="<i>x</i>", temperature=0, max_tokens=150)
    assert page.text() == (TEXT * 9).encode()[8:158].decode(errors="replace")
    assert page.at("text").find_element(By.CSS_SELECTOR, ".prompt").text == "<i>x</i>"
    assert page.driver.find_elements(By.CSS_SELECTOR, "#text b, #text i, #text img") == []
    assert page.at("status").text.startswith("150 tokens in ")
    assert page.complaints() == []


@pytest.mark.skipif(find_spec("pydivsufsort") is None, reason="needs the extra trace")
def test_spans_of_the_training_tokens_lead_to_their_page(page: Page) -> None:
    page.open()
    page.go(prompt="🙂 <b>bold</b><img src=x onerror=alert(1)>", temperature=0, max_tokens=60)
    page.until(lambda: "training tokens" in page.at("traced").text, "the spans")
    traced = page.driver.find_elements(By.CSS_SELECTOR, "#text .traced")
    span = traced[0].get_attribute("textContent")
    assert span.startswith(" <b>bold</b><img src=x") and span in TEXT
    assert page.at("text").find_element(By.CSS_SELECTOR, ".prompt").text.startswith("🙂")
    traced[0].send_keys(Keys.ENTER)
    page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#places .around"), "the page")
    links = page.driver.find_elements(By.CSS_SELECTOR, "#places a")
    assert len(links) == 3
    assert page.driver.find_element(By.CSS_SELECTOR, "#places mark").get_attribute("textContent") == span
    page.until(lambda: "shuffled: kept" in page.at("places").text, "the steps")
    assert page.driver.find_elements(By.CSS_SELECTOR, "#places b, #places img, #text img") == []
    page.at("close_sources").click()
    assert not page.at("sources").is_displayed()
    assert page.complaints() == []


def test_a_model_with_a_chat_template_is_talked_with(page: Page, tmp_path: Path) -> None:
    write_reciting_model(tmp_path / "model", "Hello\nI hear you.\0Hello\nAgain.\0", end="\0")
    (tmp_path / "model" / FILE).write_text(
        "{% for m in messages %}{{ m.content + (eos_token if m.role == 'assistant' else '\n') }}{% endfor %}"
    )
    with server(OURS, tmp_path / "model", [], threads=1) as (address, _):
        talk = Page(page.driver, address)
        talk.driver.get(f"{address}/")
        talk.until(lambda: talk.at("chat_field").is_displayed(), "the field for chat")
        talk.go(prompt="Hello", temperature=0)
        assert (talk.text(), talk.at("prompt").get_property("value")) == ("I hear you.", "")
        talk.go(prompt="Hello")  # the history is sent
        assert talk.text() == "I hear you.Again."
        ActionChains(talk.driver).move_to_element(talk.tokens()[0]).perform()
        assert talk.at("tip").is_displayed()
        talk.at("adopt").click()
        assert talk.text() == ""
        talk.go(prompt="Hello")
        assert talk.text() == "I hear you."
        talk.at("chat").click()
        talk.go(prompt="Hello\nI he")
        assert talk.text() == "ar you."
        assert talk.at("adopt").text == "Use as prompt"
        assert talk.complaints() == []


def test_line_ends_in_a_text_do_not_break_the_stream(page: Page) -> None:
    asked = {"prompt": "Gr", "temperature": 0, "max_tokens": 120, "stream": True, "logprobs": 0}
    lines = [line for line in page.ask("/v1/completions", asked).splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    made = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1])
    assert made.startswith(TEXT[2:])
    assert "\u2028" in made


def test_probabilities_are_shown_on_hover_and_focus(page: Page) -> None:
    page.open()
    page.go(prompt="Gr", temperature=0, max_tokens=20)
    asked = {"prompt": "Gr", "temperature": 0, "max_tokens": 20, "logprobs": 5}
    scores = json.loads(page.ask("/v1/completions", asked))["choices"][0]["logprobs"]
    tokens = page.tokens()
    assert [one.get_property("textContent") for one in tokens[:4]] == ["ü", "ß", "e", ","]  # two bytes, two bytes, …
    tip = page.at("tip")
    assert not tip.is_displayed()

    ActionChains(page.driver).move_to_element(tokens[3]).perform()
    assert tip.is_displayed()
    head, *rows = tip.text.split("\n")
    assert head == ","
    assert rows[0] == shown(scores["token_logprobs"][5])
    best = sorted(scores["top_logprobs"][5].values(), reverse=True)
    assert [row for row in rows[1:] if row.endswith("%")] == [shown(one) for one in best]

    tokens[0].click()  # a letter of two tokens: both are shown, with their joint probability
    assert tip.text.split("\n")[1] == shown(scores["token_logprobs"][0] + scores["token_logprobs"][1])
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert tip.text.split("\n")[:2] == ["e", shown(scores["token_logprobs"][4])]
    assert page.driver.switch_to.active_element == tokens[2]
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def shown(logprob: float) -> str:
    share = math.exp(logprob)
    if share >= 0.9995:
        return "≈ 100 %"
    return "< 0.01 %" if share < 0.0001 else f"{share * 100:.{2 if share < 0.01 else 1}f} %"


STOP_AT_THE_FIRST_TOKEN = """
new MutationObserver((changes, observer) => {
  if (!document.querySelector("#text .token")) return;
  observer.disconnect();
  window.enabled = !document.getElementById("go").disabled;
  document.getElementById("stop").click();
}).observe(document.getElementById("text"), {childList: true, subtree: true});
"""


def test_the_stop_button_ends_generation(page: Page) -> None:
    page.open()
    page.fill(prompt="Gr", max_tokens=4000)
    page.driver.execute_script(STOP_AT_THE_FIRST_TOKEN)  # on a busy machine a command of the driver comes too late
    page.at("go").click()
    page.until(lambda: page.at("status").text.startswith("stopped"), "the end")
    assert page.at("go").is_enabled() and page.driver.execute_script("return window.enabled") is False
    made = re.fullmatch(r"stopped after (\d+) tokens?", page.at("status").text)
    assert made and int(made[1]) < 4000
    assert not page.at("error").is_displayed()

    page.until(lambda: json.loads(page.ask("/health"))["rows"] == 0, "the row")
    page.at("adopt").click()
    assert page.at("prompt").get_property("value").startswith("Gr")
    assert len(page.at("prompt").get_property("value")) > 2


def test_settings_reach_the_server(page: Page) -> None:
    page.open()
    page.go(prompt="Gr", temperature=0, max_tokens=90, stop_text=".\\n")
    assert page.text() == TEXT[2:-2]
    assert "end of the text" in page.at("status").text
    texts = []
    for seed in (1, 2, 1):
        page.go(temperature=50, top_p=1, max_tokens=60, seed=seed, stop_text="\ue003")
        texts.append(page.text())
    assert texts[0] == texts[2] != texts[1]


def test_errors_are_shown_as_text(page: Page) -> None:
    page.open()
    page.go(prompt="Gr", max_tokens=5000)
    assert "context is 4096 tokens" in page.at("error").text
    page.go(temperature="-1", max_tokens=5)
    assert page.at("error").text == "Temperature: give a number from 0 to 100."
    assert page.driver.switch_to.active_element == page.at("temperature")
    page.go(temperature=0)
    assert not page.at("error").is_displayed()
    assert page.text() == TEXT[2:5]  # five bytes


def test_the_page_fits_a_phone(page: Page) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open()
        page.go(prompt="Gr", temperature=0, max_tokens=80)
        assert page.driver.execute_script("return document.documentElement.scrollWidth") == 360
        page.tokens()[-1].click()
        place = page.at("tip").rect
        assert place["x"] >= 0 and place["x"] + place["width"] <= 360
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_wrong_key_and_a_missing_server_are_reported(page: Page) -> None:
    page.open(key="sesame", name="send the key of this server")
    page.go(prompt="Gr", temperature=0, max_tokens=5)
    assert "send the key of this server" in page.at("error").text
    page.go(key=KEY)
    assert page.text() == TEXT[2:5]
    page.driver.set_network_conditions(offline=True, latency=0, throughput=0)
    try:
        page.go()
        assert page.at("error").text == "No response from the server; it may have been stopped."
        assert page.text() == ""
    finally:
        page.driver.delete_network_conditions()
