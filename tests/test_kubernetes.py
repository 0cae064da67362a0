"""Kubernetes manifests, compared with their schemas, each other, and the commands that they run."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpt2train.launch.torchrun import UNFINISHED

FOLDER = Path(__file__).parents[1] / "deployments" / "kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
RESOURCES: dict[tuple[str, str], dict[str, Any]] = {
    (one["kind"], one["metadata"]["name"]): one for path in FILES for one in yaml.safe_load_all(path.read_text())
}
PODS = {key: one["spec"]["template"] for key, one in RESOURCES.items() if "template" in one.get("spec", {})}


def test_each_manifest_matches_its_schema() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the extra `peers` carries the schemas")
    assert len(RESOURCES) >= 10
    for one in RESOURCES.values():
        kubernetes_validate.validate(one, "1.33", strict=True)


def test_kustomize_includes_the_files_of_its_folder() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "training.yaml"} == {path.name for path in FILES}
    assert all((FOLDER / name).exists() for name in kustomization["resources"])


def test_only_the_worker_reaches_the_server_and_both_have_the_key() -> None:
    [policy] = [
        one["spec"] for (kind, name), one in RESOURCES.items() if (kind, name) == ("NetworkPolicy", "prefect-server")
    ]
    assert policy["podSelector"]["matchLabels"] == PODS["Deployment", "prefect-server"]["metadata"]["labels"]
    worker = PODS["Deployment", "gpt2train-worker"]["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": worker}}], "ports": [{"port": "http"}]}]
    closed = RESOURCES["NetworkPolicy", "gpt2train-worker"]["spec"]
    assert closed["podSelector"]["matchLabels"] == worker and closed["ingress"] == []
    keys = {}
    for name, variable in (("prefect-server", "SERVER_API"), ("gpt2train-worker", "API")):
        [container] = PODS["Deployment", name]["spec"]["containers"]
        [entry] = [each for each in container["env"] if each["name"] == f"PREFECT_{variable}_AUTH_STRING"]
        keys[name] = entry["valueFrom"]["secretKeyRef"]  # never a value in the file
    assert keys["prefect-server"] == keys["gpt2train-worker"] == {"name": "gpt2train-api", "key": "key"}


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
    assert (options.training_script, options.training_script_args) == (
        "gpt2train.train",
        [f"--config={values['RUN']}/config.toml"],
    )
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"][:2]}
    assert codes == {"FailJob": [2], "Ignore": [UNFINISHED]}
