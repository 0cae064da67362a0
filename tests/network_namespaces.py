"""Two Linux network namespaces that simulate two machines, joined by one virtual cable."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


def ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0


@pytest.fixture
def networks() -> Iterator[list[str]]:
    """Names of two network namespaces; their addresses are 10.99.0.1 and 10.99.0.2."""
    names = [f"gpt2train-{os.getpid()}-{side}" for side in "ab"]
    if not shutil.which("ip") or not all(ip("netns", "add", name) for name in names):
        pytest.skip("network namespaces need root and iproute2")
    try:
        made = ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        if not made:
            pytest.skip("no virtual cables here")
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)
