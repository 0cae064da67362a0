"""Kubernetes manifests against their schemas, and the launch script for containers."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpt2train.launch.torchrun import UNFINISHED

FOLDER = Path(__file__).parents[1] / "deployments" / "kubernetes"
FILES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")
PAGE = (FOLDER.parents[1] / "docs/operate/kubernetes.md").read_text()
RESOURCES: dict[tuple[str, str], dict[str, Any]] = {
    (one["kind"], one["metadata"]["name"]): one for path in FILES for one in yaml.safe_load_all(path.read_text())
}
PODS = {key: one["spec"]["template"] for key, one in RESOURCES.items() if "template" in one.get("spec", {})}


def test_each_manifest_matches_its_schema() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the extra `peers` carries the schemas")
    assert len(RESOURCES) >= 10
    for one in RESOURCES.values():
        kubernetes_validate.validate(one, "1.33", strict=True)


def test_the_documented_commands_apply_every_file_of_the_folder() -> None:
    shown = re.findall(r"^kubectl apply --kustomize (\S+)$", PAGE, re.MULTILINE)
    assert len(set(shown)) == 2 and not re.search("kubectl .*--filename", PAGE)
    listed: list[Path] = []
    for folder in {FOLDER.parents[1] / name for name in shown}:
        listed += (folder / name for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"])
    assert sorted(listed) == FILES


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "training"], ids=lambda folder: folder.name)
def test_one_edit_names_the_image_of_every_pod(folder: Path, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    [edited] = [name for name in re.findall(r"`(deployments/kubernetes/\S+\.yaml)`", PAGE) if "image" in name]
    copy = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, copy)
    file = copy / Path(edited).relative_to("deployments/kubernetes")
    file.write_text(file.read_text().replace("registry.example/gpt2train", "own.example/g").replace('"1"', '"26.11"'))
    rendered = subprocess.run(
        [kubectl, "kustomize", str(copy / folder.relative_to(FOLDER))], capture_output=True, text=True, check=True
    ).stdout
    images = re.findall(r"image: (\S+)", rendered)
    assert images and {*images} == {"own.example/g:26.11"}
    assert all(one["metadata"].get("namespace", "gpt2train") == "gpt2train" for one in yaml.safe_load_all(rendered))


def test_browsers_are_sent_to_the_address_of_the_documented_port_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect takes the address that the server listens on, 0.0.0.0, for that of its API where no setting names one."""
    from prefect.settings.models.root import Settings

    [container] = PODS["Deployment", "prefect-server"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    command = container["command"]
    given["PREFECT_SERVER_API_HOST"] = command[command.index("--host") + 1]  # what `prefect server start` sets
    for name, value in {"PREFECT_API_URL": "", **given}.items():
        monkeypatch.setenv(name, value)
    [port] = re.findall(r"port-forward service/prefect-server (\d+):4200", PAGE)
    address = f"http://127.0.0.1:{port}"
    server = Settings().server
    assert server.ui.api_url == f"{address}/api" and address in (server.api.cors_allowed_origins or "")
    postgres = (FOLDER.parents[1] / "docs/operate/postgres.md").read_text()
    assert all("PREFECT_SERVER_UI_API_URL=" in page for page in (postgres, PAGE) if "--host 0.0.0.0" in page)


def test_only_the_worker_reaches_the_server_and_both_have_the_key() -> None:
    policy = RESOURCES["NetworkPolicy", "prefect-server"]["spec"]
    assert policy["podSelector"]["matchLabels"] == PODS["Deployment", "prefect-server"]["metadata"]["labels"]
    worker = PODS["Deployment", "gpt2train-worker"]["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": worker}}], "ports": [{"port": "http"}]}]
    closed = RESOURCES["NetworkPolicy", "gpt2train-worker"]["spec"]
    assert closed["podSelector"]["matchLabels"] == worker and closed["ingress"] == []
    for name, variable in (("prefect-server", "SERVER_API"), ("gpt2train-worker", "API")):
        [container] = PODS["Deployment", name]["spec"]["containers"]
        [entry] = [each for each in container["env"] if each["name"] == f"PREFECT_{variable}_AUTH_STRING"]
        # Never a value in the file.
        assert entry["valueFrom"]["secretKeyRef"] == {"name": "gpt2train-api", "key": "key"}


@pytest.mark.parametrize("key", PODS, ids=lambda key: key[1])
def test_each_resource_named_by_a_pod_exists(key: tuple[str, str]) -> None:
    pod, labels = PODS[key]["spec"], PODS[key]["metadata"]["labels"]
    [container] = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for volume in pod["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            assert ("PersistentVolumeClaim", claim["claimName"]) in RESOURCES
    if "selector" in RESOURCES[key]["spec"]:
        assert RESOURCES[key]["spec"]["selector"]["matchLabels"] == labels
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["image"] == "gpt2train"
    given = {each["name"] for each in container.get("env", [])}
    words = [*container["command"], *container.get("args", [])]
    assert {word.split("$(")[1].split(")")[0] for word in words if "$(" in word} <= given


@pytest.mark.parametrize("name", ["prefect-server", "gpt2train-training"])
def test_each_service_selects_its_pod(name: str) -> None:
    service = RESOURCES["Service", name]["spec"]
    [pod] = [pod for (_, of), pod in PODS.items() if of == name]
    assert service["selector"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    [port] = service["ports"]
    assert ports[port["name"]] == port["port"]
    if name == "prefect-server":
        [worker] = PODS["Deployment", "gpt2train-worker"]["spec"]["containers"]
        [address] = [each["value"] for each in worker["env"] if each["name"] == "PREFECT_API_URL"]
        assert address == f"http://{name}:{port['port']}/api"


def test_pods_of_a_training_are_reachable_only_by_each_other() -> None:
    policy = RESOURCES["NetworkPolicy", "gpt2train-training"]["spec"]
    labels = PODS["Job", "gpt2train-training"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress"]
    # All ports: gloo and NCCL choose theirs. No `namespaceSelector`, so pods of this namespace alone.
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]


def test_pods_of_a_training_have_valid_torchrun_arguments() -> None:
    job = RESOURCES["Job", "gpt2train-training"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value", "10.0.0.7") for each in container["env"]}
    words = [*container["command"], *container["args"]]
    for name, value in values.items():
        words = [word.replace(f"$({name})", value) for word in words]
    assert words[:6] == ["python", "-m", "gpt2train.launch", "--complete", values["RUN"], "--"]
    from torch.distributed import run

    options: argparse.Namespace = run.parse_args(words[6:])
    assert (options.nnodes, options.nproc_per_node) == (str(job["completions"]), values["PROCESSES"])
    assert job["parallelism"] == job["completions"]
    assert int(values["PROCESSES"]) == int(container["resources"]["limits"]["nvidia.com/gpu"])
    first = f"{RESOURCES['Job', 'gpt2train-training']['metadata']['name']}-0.{job['template']['spec']['subdomain']}"
    assert options.rdzv_endpoint == f"{first}:29500"
    assert options.training_script == "gpt2train.train"
    assert options.training_script_args == [f"--config={values['RUN']}/config.toml"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"][:2]}
    assert codes == {"FailJob": [2], "Ignore": [UNFINISHED]}


ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deployments" / "container.py"
USER = ["--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]


def launch(*words: str, folder: Path, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"] if path is None else path}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, cwd=folder, env=environment, input="", capture_output=True, text=True, check=False)


def line_of(*words: str, folder: Path) -> list[str]:
    done = launch(*words, "--dry-run", "--", "python", "-m", "flows.pretrain", "--dry-run", folder=folder)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def has(line: list[str], *words: str) -> bool:
    return any(line[at : at + len(words)] == list(words) for at in range(len(line)))


def test_docker_gets_source_gpus_and_shared_memory(tmp_path: Path) -> None:
    line = line_of("--engine", "docker", "--src", str(ROOT), "--gpus", "0,1", "--shm-size", "16g", folder=tmp_path)
    assert line[:4] == ["docker", "run", "--rm", "--init"]
    assert has(line, "--volume", f"{ROOT}:/src:ro") and has(line, "--env", "PYTHONPATH=/src")
    assert has(line, "--gpus", '"device=0,1"') and has(line, "--shm-size", "16g") and has(line, *USER)
    assert has(line, "--volume", f"{tmp_path}:/data", "--workdir", "/data")
    assert line[-5:] == ["gpt2train", "python", "-m", "flows.pretrain", "--dry-run"]
    assert has(line_of("--engine", "docker", "--gpus", "all", folder=tmp_path), "--gpus", "all")


def test_podman_gets_cdi_devices_and_the_user_s_id(tmp_path: Path) -> None:
    words = ["--engine", "podman", "--gpus", "0,1", "--image", "registry.example/gpt2train:1"]
    line = line_of(*words, "--env", "WANDB_MODE=offline", "--volume", "/scratch:/scratch", folder=tmp_path)
    assert has(line, "--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1") and "--gpus" not in line
    assert has(line, "--userns", "keep-id") and has(line, "--env", "WANDB_MODE=offline")
    assert has(line, "--volume", "/scratch:/scratch") and line[-5] == "registry.example/gpt2train:1"
    assert not [word for word in line if "/src" in word]
    bare = line_of("--engine", "podman", "--gpus", "none", folder=tmp_path)
    assert not [word for word in bare if "nvidia" in word]


def test_the_engine_is_started_with_that_line(tmp_path: Path) -> None:
    """An engine that prints its arguments, in the place of a real one."""
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin/docker"
    engine.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\nexit 7\n')
    engine.chmod(0o755)
    done = launch("--src", str(ROOT), "--", "echo", "a b", folder=tmp_path, path=f"{tmp_path}/bin:/bin")
    assert done.returncode == 7
    lines = done.stdout.splitlines()
    assert lines[1:3] == ["run", "--rm"] and lines[-3:] == ["gpt2train", "echo", "a b"]
    assert "--gpus" not in lines  # no nvidia-smi on this PATH


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--src", "."], "no command; give it after --"),
        (["--src", "none", "--", "true"], "--src none holds no gpt2train/; give the root of a checkout"),
        (["--data", "none", "--", "true"], "--data none is not a folder"),
        (["--gpus", "0 1", "--", "true"], "--gpus '0 1' is none of all, none, auto"),
        (["--engine", "lxc", "--", "true"], "invalid choice: 'lxc'"),
        (["--", "true"], "neither podman nor docker is on the PATH"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "bin").mkdir()
    done = launch(*words, folder=tmp_path, path=str(tmp_path / "bin"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_the_engine_knows_every_option(engine: str, tmp_path: Path) -> None:
    if shutil.which(engine) is None:
        pytest.skip(f"no {engine} on the PATH")
    words = ["--engine", engine, "--src", str(ROOT), "--gpus", "0,1", "--env", "A=b", "--volume", "/scratch:/scratch"]
    line = line_of(*words, folder=tmp_path)
    given = {word for word in line[: line.index("gpt2train")] if word.startswith("--")}
    listed = subprocess.run([engine, "run", "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert len(given) > 8 and given <= set(re.findall(r"--[a-z-]+", listed))
