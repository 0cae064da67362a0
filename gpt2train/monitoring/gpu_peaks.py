"""Peak FLOP/s of GPUs by their product name."""

import re

# Dense peak in FLOP/s in bfloat16, or in float16 on GPUs without it (V100, T4), accumulated in float32, by words of the
# product name (vendors' data sheets). The SXM variant has no word of its own where a PCIe or NVL variant is listed.
PEAKS = {
    "GB300": 2500e12,
    "GB200": 2500e12,
    "B300": 2250e12,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H800": 989e12,
    "H800 PCIe": 756e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "A10G": 70e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX PRO 6000 Blackwell": 503.8e12,
    "RTX 6000 Ada": 364.2e12,
    "RTX A6000": 154.8e12,
    "GeForce RTX 5090": 209.5e12,
    "GeForce RTX 4090": 165.2e12,
    "GeForce RTX 3090": 71e12,
    "V100": 125e12,
    "V100 PCIe": 112e12,
    "V100S": 130e12,
    "T4": 65e12,
}
OTHER_SPEED = {"mig", "laptop", "max", "ti", "d"}  # words of parts and variants of a GPU that the table does not list


def peak_flops(name: str) -> float | None:
    """Dense half-precision peak of a GPU in FLOP/s; None for a GPU that is not in the table.

    Args:
        name: product name by the driver, such as "NVIDIA H100 80GB HBM3".
    """
    words = _words(name)
    found = [key for key in PEAKS if _words(key) <= words]
    return PEAKS[max(found, key=lambda key: len(_words(key)))] if found and not words & OTHER_SPEED else None


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))
