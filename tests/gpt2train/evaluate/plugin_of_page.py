"""The evaluation of docs/develop/add-an-evaluation.md, installed beside the package."""

import json
import re
import tomllib
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/develop/add-an-evaluation.md"


def code(language: str) -> str:
    """The one block of a language on the page."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    return str(found)


def install(folder: Path, version: str = "") -> None:
    """Write the distribution of the page, as `pip install --target` leaves it."""
    project = tomllib.loads(code("toml"))
    [(name, module)] = project["project"]["entry-points"]["gpt2train"].items()
    (folder / f"{module}.py").write_text(code("python"))
    info = folder / f"{module}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    described = f"Name: {project['project']['name']}\nVersion: {version or project['project']['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{described}")
    (info / "entry_points.txt").write_text(f"[gpt2train]\n{name} = {module}\n")


def write_items(file: Path) -> None:
    """Three items of two and three choices."""
    items = [
        {"question": "A cat is", "choices": ["an animal", "a number"], "label": 0},
        {"question": "Two and two is", "choices": ["four", "five", "a horse"], "label": 0},
        {"question": "Naïve", "choices": ["é", "e"], "label": 1},
    ]
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
