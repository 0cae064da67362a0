"""Choice of the network interface through which gloo and NCCL connect the ranks of a job.

By default both use the interface of the host name. On one machine that opens ports to the network without need; in a
network where the host name resolves to another interface, or to loopback as in Debian's /etc/hosts, ranks cannot
connect.
"""

import socket
from collections.abc import Mapping, MutableMapping

import psutil

from gpt2train.errors import UserError
from gpt2train.launch.process_env import LOOPBACK, is_loopback

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def use_loopback(env: MutableMapping[str, str]) -> None:
    """Make gloo and NCCL open their ports on loopback, unless an interface is chosen already."""
    for name in _names_of_address(LOOPBACK):
        env.setdefault("GLOO_SOCKET_IFNAME", name)
        env.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # exact name, not a prefix


def forget_loopback(env: MutableMapping[str, str]) -> None:
    """Undo a choice of loopback, for a job of several machines: no other machine can be reached through it.

    The variables are inherited, by subprocesses, over ssh and by Slurm's `--export=ALL`, from a process that took part
    in a job of one machine.
    """
    for name, addresses in psutil.net_if_addrs().items():
        ip_addresses = [one.address for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6)]
        if ip_addresses and all(map(is_loopback, ip_addresses)):
            for variable in VARIABLES:
                if env.get(variable, "").lstrip("=") == name:
                    del env[variable]


def use_interface_of(address: str, env: MutableMapping[str, str]) -> None:
    """Make gloo use the interface with this address of this machine, unless an interface is chosen already."""
    for name in _names_of_address(address):
        env.setdefault("GLOO_SOCKET_IFNAME", name)


def check_interface(env: Mapping[str, str]) -> None:
    """Raise a UserError if the interface chosen for gloo is none of this machine.

    gloo would fail as it does when another process is gone.
    """
    present = psutil.net_if_addrs()
    for name in filter(None, env.get("GLOO_SOCKET_IFNAME", "").split(",")):
        if name not in present:
            raise UserError(
                f"GLOO_SOCKET_IFNAME: {socket.gethostname()} has no network interface {name}; "
                f"unset it or name one of {', '.join(sorted(present))}"
            )


def _names_of_address(address: str) -> list[str]:
    return [name for name, found in psutil.net_if_addrs().items() if any(one.address == address for one in found)]
