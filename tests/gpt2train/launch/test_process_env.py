"""Process environment from the variables of torchrun and Slurm, and the network interface of gloo and NCCL."""

import re
import socket
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import UserError
from gpt2train.launch import network_interfaces
from gpt2train.launch.process_env import ProcessEnv, expand_nodes, read_process_env


def variables(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.split())


TORCHRUN = variables(
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.7 MASTER_PORT=29500 "
    "TORCHELASTIC_RUN_ID=job-1 TORCHELASTIC_USE_AGENT_STORE=True"
)
# As srun of Slurm 23 sets them for task 5 of `srun --nodes 2 --ntasks 7`.
SLURM = variables(
    "SLURM_JOB_ID=4711 SLURM_STEP_ID=2 SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=1 "
    "SLURM_NODEID=1 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[08-09] SLURM_STEP_NODELIST=gpu[08-09] "
    "SLURM_STEP_TASKS_PER_NODE=4,3 SLURM_TASKS_PER_NODE=4,3"
)


def test_a_list_of_nodes_is_expanded_and_an_invalid_one_refused() -> None:
    for nodelist, nodes in {
        "a[01-03,7],b": "a01 a02 a03 a7 b",
        "node1": "node1",
        "node1,node2": "node1 node2",
        "cn-[0998-1001]": "cn-0998 cn-0999 cn-1000 cn-1001",
        "rack[0-1]n[3,5]": "rack0n3 rack0n5 rack1n3 rack1n5",
        "gpu[1-2].cluster.example,login": "gpu1.cluster.example gpu2.cluster.example login",
        "10.0.0.[7-8]": "10.0.0.7 10.0.0.8",
    }.items():
        assert expand_nodes(nodelist) == nodes.split()
    for nodelist in ("", "a[", "a[1-", "a[x]", "a[3-1]", "a]b", "a[]", "a b"):
        with pytest.raises(UserError, match=re.escape(repr(nodelist)) + " is not a list of Slurm nodes"):
            expand_nodes(nodelist)


@given(st.integers(0, 2000), st.integers(1, 40), st.integers(1, 5))
def test_a_range_of_nodes_is_expanded_with_its_zero_padding(first: int, count: int, width: int) -> None:
    numbers = [str(n).zfill(width) for n in range(first, first + count)]
    assert expand_nodes(f"n[{numbers[0]}-{numbers[-1]}]") == [f"n{number}" for number in numbers]


def test_a_process_without_a_launcher_is_rank_0_of_1() -> None:
    assert read_process_env({}) == ProcessEnv(0, 1, 0, 1)
    assert read_process_env({"RANK": "", "WORLD_SIZE": ""}) == ProcessEnv()  # of a composed environment
    # A batch script without srun.
    script = {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP")}
    assert read_process_env(script | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}) == ProcessEnv()


def test_the_variables_of_torchrun_are_read() -> None:
    assert read_process_env(TORCHRUN) == ProcessEnv(5, 8, 1, 4, "10.0.0.7", 29500, "job-1")
    by_hand = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    assert read_process_env(by_hand) == ProcessEnv(0, 2, 0, 2, "h", 1, hosts_store=True)
    assert read_process_env(SLURM | TORCHRUN) == read_process_env(TORCHRUN)  # torchrun started by srun


def test_the_variables_of_slurm_are_read() -> None:
    process = read_process_env(SLURM)
    assert process == ProcessEnv(5, 7, 1, 3, "gpu08", 12_000 + 4711 + 2, "4711.2")
    first = read_process_env(SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert first.hosts_store and (first.host, first.port, first.local_world) == ("gpu08", process.port, 4)
    assert read_process_env(SLURM | {"MASTER_PORT": "999", "MASTER_ADDR": "x"}).host == "x"
    assert read_process_env(SLURM | {"CUDA_VISIBLE_DEVICES": "1"}).own_gpu
    assert not read_process_env(SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}).own_gpu
    # Tasks are divided equally where Slurm does not count them.
    bare = {k: v for k, v in SLURM.items() if not k.endswith("TASKS_PER_NODE")} | {"SLURM_STEP_NUM_TASKS": "6"}
    assert read_process_env(bare).local_world == 3


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (TORCHRUN, {"MASTER_PORT": None}, "RANK is set, but MASTER_PORT not"),
        (TORCHRUN, {"RANK": None}, "WORLD_SIZE is set, but RANK not"),
        (TORCHRUN, {"RANK": ""}, "WORLD_SIZE is set, but RANK not"),
        (TORCHRUN, {"RANK": "8"}, "RANK is 8, but WORLD_SIZE gives only 8"),
        (TORCHRUN, {"LOCAL_RANK": "4"}, "LOCAL_RANK is 4, but LOCAL_WORLD_SIZE gives only 4"),
        (TORCHRUN, {"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is 9, but WORLD_SIZE is 8"),
        (TORCHRUN, {"MASTER_PORT": "70000"}, "a port is between 1 and 65535"),
        (TORCHRUN, {"RANK": "two"}, "RANK is 'two', which is not a number"),
        (SLURM, {"RANK": "0", "WORLD_SIZE": "7", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "but SLURM_PROCID is 5"),
        (SLURM, {"SLURM_PROCID": "7"}, "SLURM_PROCID is 7, but SLURM_STEP_NUM_TASKS gives only 7"),
        (SLURM, {"SLURM_LOCALID": "3"}, "SLURM_LOCALID is 3, but the tasks of this node gives only 3"),
        (SLURM, {"SLURM_NODEID": "2"}, "SLURM_NODEID is 2, but SLURM_STEP_NODELIST gives only 2"),
        (SLURM, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, "for 7 tasks on 2 nodes"),
        (SLURM, {"SLURM_STEP_TASKS_PER_NODE": "4(y2)"}, "is not of the form"),
        (SLURM, {"SLURM_STEP_NODELIST": "gpu[08"}, "is not a list of Slurm nodes"),
        (SLURM, {"SLURM_STEP_NODELIST": None, "SLURM_JOB_NODELIST": None}, "SLURM_JOB_NODELIST is not set"),
    ],
)
def test_contradicting_variables_are_refused(base: dict[str, str], change: dict[str, Any], message: str) -> None:
    env = {name: value for name, value in (base | change).items() if value is not None}
    with pytest.raises(UserError, match=re.escape(message)):
        read_process_env(env)


def test_a_job_of_one_machine_is_recognised() -> None:
    alone = TORCHRUN | {"WORLD_SIZE": "4", "RANK": "1"}
    assert not read_process_env(TORCHRUN).one_machine and read_process_env(alone).one_machine
    assert read_process_env(alone).host == "10.0.0.7", "torchrun's agent opened the port there"
    by_hand = {name: alone[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    assert not read_process_env(by_hand).one_machine, "the others may be anywhere"
    assert read_process_env(by_hand | {"MASTER_ADDR": "localhost"}).one_machine
    assert read_process_env(by_hand | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}).host == "127.0.0.1"
    step = {"SLURM_STEP_NODELIST": "gpu08", "SLURM_STEP_TASKS_PER_NODE": "7", "SLURM_NODEID": "0", "SLURM_LOCALID": "5"}
    here = read_process_env(SLURM | step)
    assert here.one_machine and here.host == "127.0.0.1" and not read_process_env(SLURM).one_machine
    # Ranks of one machine have a file for each attempt.
    env = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    env |= {"GPT2TRAIN_STORE": "/tmp/x", "TORCHELASTIC_RESTART_COUNT": "2", "MASTER_PORT": "0"}
    assert read_process_env(env) == ProcessEnv(5, 8, 1, 4, store="/tmp/x/2", one_machine=True)


INTERFACES = {
    "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_PACKET, "00:00:00:00:00:00")],
    "routed": [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "10.7.0.1")],
    "eth0": [(socket.AF_INET, "192.0.2.5"), (socket.AF_INET6, "fe80::1%eth0")],
    "down": [(socket.AF_PACKET, "02:00:00:00:00:01")],
}


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        name: [SimpleNamespace(family=family, address=address) for family, address in addresses]
        for name, addresses in INTERFACES.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: made)


def test_a_job_of_one_machine_uses_loopback_and_a_choice_of_the_user_is_kept(interfaces: None) -> None:
    env: dict[str, str] = {}
    network_interfaces.use_loopback(env)
    assert env == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    chosen = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "routed"}
    env = dict(chosen)
    network_interfaces.use_loopback(env)
    network_interfaces.use_interface_of("10.7.0.1", env)
    network_interfaces.forget_loopback(env)
    assert env == chosen


def test_a_job_of_several_machines_ignores_an_inherited_loopback_interface(interfaces: None) -> None:
    env: dict[str, str] = {"OTHER": "lo"}
    network_interfaces.use_loopback(env)
    network_interfaces.forget_loopback(env)
    network_interfaces.use_interface_of("192.0.2.5", env)
    assert env == {"OTHER": "lo", "GLOO_SOCKET_IFNAME": "eth0"}
    # One with other addresses beside loopback is kept.
    env = {"GLOO_SOCKET_IFNAME": "routed", "NCCL_SOCKET_IFNAME": "down"}
    network_interfaces.forget_loopback(env)
    assert env == {"GLOO_SOCKET_IFNAME": "routed", "NCCL_SOCKET_IFNAME": "down"}


def test_an_interface_that_this_machine_lacks_is_the_users_mistake(interfaces: None) -> None:
    network_interfaces.check_interface({})
    network_interfaces.check_interface({"GLOO_SOCKET_IFNAME": "lo,eth0"})
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME: .* has no network interface eth7; .* down, eth0, lo"):
        network_interfaces.check_interface({"GLOO_SOCKET_IFNAME": "eth7"})
