"""The network interface that gloo and NCCL use."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from gpt2train.errors import UserError
from gpt2train.launch import network_interfaces

INTERFACES = {
    "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_PACKET, "00:00:00:00:00:00")],
    "routed": [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "10.7.0.1")],
    "eth0": [(socket.AF_INET, "192.0.2.5"), (socket.AF_INET6, "fe80::1%eth0")],
    "down": [(socket.AF_PACKET, "02:00:00:00:00:01")],
}


@pytest.fixture(autouse=True)
def _interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        name: [SimpleNamespace(family=family, address=address) for family, address in addresses]
        for name, addresses in INTERFACES.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: made)


def test_a_job_of_one_machine_uses_loopback() -> None:
    env: dict[str, str] = {}
    network_interfaces.use_loopback(env)
    assert env == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}


def test_a_choice_of_the_user_is_kept() -> None:
    chosen = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "routed"}
    env = dict(chosen)
    network_interfaces.use_loopback(env)
    network_interfaces.use_interface_of("10.7.0.1", env)
    network_interfaces.forget_loopback(env)
    assert env == chosen


def test_a_job_of_several_machines_ignores_an_inherited_loopback_interface() -> None:
    env: dict[str, str] = {"OTHER": "lo"}
    network_interfaces.use_loopback(env)
    network_interfaces.forget_loopback(env)
    network_interfaces.use_interface_of("192.0.2.5", env)
    assert env == {"OTHER": "lo", "GLOO_SOCKET_IFNAME": "eth0"}


def test_an_interface_with_other_addresses_beside_loopback_is_kept() -> None:
    env = {"GLOO_SOCKET_IFNAME": "routed", "NCCL_SOCKET_IFNAME": "down"}
    network_interfaces.forget_loopback(env)
    assert env == {"GLOO_SOCKET_IFNAME": "routed", "NCCL_SOCKET_IFNAME": "down"}


def test_an_interface_that_this_machine_lacks_is_the_users_mistake() -> None:
    network_interfaces.check_interface({})
    network_interfaces.check_interface({"GLOO_SOCKET_IFNAME": "lo,eth0"})
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME: .* has no network interface eth7; .* down, eth0, lo"):
        network_interfaces.check_interface({"GLOO_SOCKET_IFNAME": "eth7"})
