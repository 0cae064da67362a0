"""The page of runs in a real browser, from a file."""

import html
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.runs.page import MARK, POINTS, curves, downsample, render
from gpt2train.runs.reading import read_run, read_runs
from tests.chromium import chromium
from tests.gpt2train.runs.fake_runs import make_run

HOSTILE = "</script><script>document.title='bad'</script><img src=x onerror=alert(1)>"


def test_the_page_loads_nothing_from_other_hosts_and_escapes_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "out/runs/a", steps=20)
    text = json.loads((run / "run.json").read_text())
    text["inputs"] = {HOSTILE: HOSTILE}
    (run / "run.json").write_text(json.dumps(text))
    page = render([read_run(run, HOSTILE)])
    assert page.count("<script") == 2 and "<img" not in page
    page = render([read_run(run)])
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    assert MARK in page and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert not re.search(r"<[^>]*\b(src|href)=(?!\"data:,\")|url\(|@import|https?:(?!//www\.w3\.org)", page)


def test_thinning_a_long_run_keeps_its_ends_and_its_mean(tmp_path: Path) -> None:
    points = [[float(step), step * 10.0, step / 3600, math.sin(step)] for step in range(1, 50_001)]
    found = downsample(points)
    assert len(found) == POINTS and found[0][0] == 1 and found[-1][0] == 50_000
    assert [point[0] for point in found] == sorted(point[0] for point in found)
    inner = found[1:-1]
    assert sum(point[0] for point in inner) / len(inner) == pytest.approx(25_000.5, rel=1e-3)
    run = read_run(make_run(tmp_path / "out/runs/a", steps=40, seconds=90))
    assert curves(run)["loss"][-1][:3] == [40, 40 * 256, 1.0]
    assert [point[0] for point in curves(run)["valid"]] == [10, 20, 30, 40]


class Browser:
    def __init__(self, driver: Any, by: Any) -> None:
        self.driver, self.by = driver, by

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements(self.by, selector))

    def lines(self, curve: str = "valid") -> list[int]:
        """The runs with a line in a chart."""
        return [int(e.get_attribute("data-run")) for e in self.all(f"[data-curve={curve}] polyline:not(.raw)")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser"), "1400,1000", performance="ALL") as driver:
        from selenium.webdriver.common.by import By

        yield Browser(driver, By.CSS_SELECTOR)


@pytest.mark.slow
def test_the_page_works_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    for number in range(3):
        make_run(tmp_path / f"out/runs/r{number}", steps=100 + 50 * number, done=100, level=2.0 + number)
    page = tmp_path / "page.html"
    page.write_text(render(read_runs([tmp_path])[0]))
    browser.driver.get(page.as_uri())
    for curve in ("loss", "valid", "lr", "speed"):
        assert browser.lines(curve) == [0, 1, 2], curve

    boxes = browser.all("#runs input")
    boxes[1].click()
    assert browser.lines() == browser.lines("lr") == [0, 2]
    browser.all("#none")[0].click()
    assert browser.lines() == [] and not any(box.is_selected() for box in boxes)
    boxes[1].click()
    assert browser.lines() == [1]
    browser.all("#all")[0].click()
    assert browser.lines() == [0, 1, 2] and all(box.is_selected() for box in boxes)

    chart = browser.all("[data-curve=valid] svg")[0]
    ActionChains(browser.driver).move_to_element(chart).perform()
    rows = browser.all("#tip .row")
    assert [row.text.split()[0] for row in rows] == ["r0", "r1", "r2"]  # by value
    assert all(float(row.text.split()[-1]) == pytest.approx(2.2 + at, abs=0.9) for at, row in enumerate(rows))
    before = browser.all("[data-curve=valid] polyline")[0].get_attribute("points")
    browser.all("#log")[0].click()
    assert browser.all("[data-curve=valid] polyline")[0].get_attribute("points") != before
    for axis in browser.all("[name=axis]"):
        axis.click()
        assert "NaN" not in browser.driver.page_source and browser.lines() == [0, 1, 2]

    assert browser.driver.get_log("browser") == []
    entries = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
    sent = [entry["params"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
    # Not those of the empty tab, which is a page of the browser's own.
    asked = {one["request"]["url"] for one in sent if one["documentURL"] == page.as_uri()}
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
