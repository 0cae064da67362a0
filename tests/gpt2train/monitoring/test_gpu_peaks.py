"""Peaks by the names that drivers report."""

from gpt2train.monitoring.gpu_peaks import PEAKS, peak_flops

NAMES = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA GH200 480GB": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA A10": 125e12,
    "NVIDIA A10G": 70e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165.2e12,
    "NVIDIA RTX 6000 Ada Generation": 364.2e12,
    "NVIDIA RTX A6000": 154.8e12,
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 503.8e12,
    "Tesla V100-SXM2-32GB": 125e12,
    "Tesla V100-PCIE-16GB": 112e12,
    "Tesla T4": 65e12,
}
UNKNOWN = [
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "Quadro RTX 6000",
    "NVIDIA T400 4GB",
    "NVIDIA H1000",
    "",
]


def test_peak_belongs_to_the_variant_of_the_gpu() -> None:
    assert {name: peak_flops(name) for name in NAMES} == NAMES
    assert {name: peak_flops(name) for name in UNKNOWN} == dict.fromkeys(UNKNOWN)


def test_every_name_of_the_table_finds_its_own_row() -> None:
    assert {name: peak_flops(f"NVIDIA {name}") for name in PEAKS} == PEAKS
