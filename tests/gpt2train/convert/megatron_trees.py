"""Checkpoints as Megatron-LM writes them, made for the tests from a transformers GPT-2, element by element.

Independent of the code under test: it starts from Hugging Face's tensors (columns [q | k | v], matrices [in, out]) and
places every row of the fused projection by the order that the version's documentation gives.
"""

from argparse import Namespace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

Model = dict[str, Tensor]


def make_model(vocab: int, layers: int, heads: int, hidden: int, context: int, seed: int = 0) -> Model:
    g = torch.Generator().manual_seed(seed)
    model = {
        "wte.weight": torch.randn(vocab, hidden, generator=g),
        "wpe.weight": torch.randn(context, hidden, generator=g),
    }
    ins = {"attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden)}
    ins |= {"mlp.c_fc": (hidden, 4 * hidden), "mlp.c_proj": (4 * hidden, hidden)}
    for layer in range(layers):
        for name, size in ins.items():
            model[f"h.{layer}.{name}.weight"] = torch.randn(size, generator=g) * 0.2
            model[f"h.{layer}.{name}.bias"] = torch.randn(size[1], generator=g)
        for name in ("ln_1", "ln_2"):
            model |= {f"h.{layer}.{name}.{part}": torch.randn(hidden, generator=g) for part in ("weight", "bias")}
    return model | {f"ln_f.{part}": torch.randn(hidden, generator=g) for part in ("weight", "bias")}


def fused(column: Tensor, heads: int, tp: int, rank: int, version: int) -> Tensor:
    """Rows of one rank's fused projection, from Hugging Face's [..., q | k | v] (last dimension)."""
    hidden = column.shape[-1] // 3
    size, mine = hidden // heads, range(rank * heads // tp, (rank + 1) * heads // tp)
    places = {
        0: [(part, head, i) for part in range(3) for head in mine for i in range(size)],
        1: [(part, head, i) for head in mine for i in range(size) for part in range(3)],
        2: [(part, head, i) for head in mine for part in range(3) for i in range(size)],
    }[min(version, 2)]
    return torch.stack([column[..., part * hidden + head * size + i] for part, head, i in places])


def rank_layers(model: Model, layers: list[int], heads: int, tp: int, rank: int, version: int, old: bool) -> Model:
    """The transformer of one rank and stage; its layers are counted from 0."""
    attention = "attention" if old else "self_attention"
    found: Model = {}
    for local, layer in enumerate(layers):

        def get(name: str, layer: int = layer) -> Tensor:
            return model[f"h.{layer}.{name}"]

        up, up_bias = get("mlp.c_fc.weight").T, get("mlp.c_fc.bias")
        wide, width = up.shape[0] // tp, get("ln_1.weight").shape[0] // tp
        found |= {
            f"layers.{local}.{name}": value
            for name, value in {
                "input_layernorm.weight": get("ln_1.weight"),
                "input_layernorm.bias": get("ln_1.bias"),
                f"{attention}.query_key_value.weight": fused(get("attn.c_attn.weight"), heads, tp, rank, version),
                f"{attention}.query_key_value.bias": fused(get("attn.c_attn.bias"), heads, tp, rank, version),
                f"{attention}.dense.weight": get("attn.c_proj.weight").T[:, rank * width : (rank + 1) * width],
                f"{attention}.dense.bias": get("attn.c_proj.bias"),
                "post_attention_layernorm.weight": get("ln_2.weight"),
                "post_attention_layernorm.bias": get("ln_2.bias"),
                "mlp.dense_h_to_4h.weight": up[rank * wide : (rank + 1) * wide],
                "mlp.dense_h_to_4h.bias": up_bias[rank * wide : (rank + 1) * wide],
                "mlp.dense_4h_to_h.weight": get("mlp.c_proj.weight").T[:, rank * wide : (rank + 1) * wide],
                "mlp.dense_4h_to_h.bias": get("mlp.c_proj.bias"),
            }.items()
        }
    return found


def core_names(state: dict[str, Any], fused_norms: bool) -> Model:
    """One rank's model under the names of Megatron-Core (2023 on), flat.

    Args:
        fused_norms: as the modules of Transformer Engine have them, with their `_extra_state`; else the local ones.
    """
    language = state["language_model"]
    found: Model = {}
    for part, value in language.get("embedding", {}).items():
        found[f"embedding.{part}.weight"] = value["weight"]
    if "word_embeddings_for_head" in state:
        found["output_layer.weight"] = state["word_embeddings_for_head"]["weight"]
    norms = {
        "input_layernorm.": "self_attention.linear_qkv.layer_norm_" if fused_norms else "input_layernorm.",
        "post_attention_layernorm.": "mlp.linear_fc1.layer_norm_" if fused_norms else "pre_mlp_layernorm.",
    }
    linears = {
        "self_attention.query_key_value.": "self_attention.linear_qkv.",
        "self_attention.dense.": "self_attention.linear_proj.",
        "mlp.dense_h_to_4h.": "mlp.linear_fc1.",
        "mlp.dense_4h_to_h.": "mlp.linear_fc2.",
    }
    for name, tensor in language["encoder"].items():
        for old, new in (norms | linears).items():
            name = name.replace(old, new)
        found[f"decoder.{name}"] = tensor
        if fused_norms and "linear" in name:
            found[f"decoder.{name.rpartition('.')[0]}._extra_state"] = BytesIO(b"state")  # type: ignore[assignment]
    return found


def write_tree(
    root: Path,
    model: Model,
    heads: int,
    *,
    tp: int = 1,
    pp: int = 1,
    virtual: int = 1,
    version: float = 3.0,
    old: bool = False,
    core: Literal["local", "te"] | None = None,
    tracker: str = "500",
    said: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write a whole tree; `said` are its args (None: it has none), `more` is stored with the model in each file."""
    layers = 1 + max(int(name.split(".")[1]) for name in model if name.startswith("h."))
    each = layers // (pp * virtual)
    rows = -(-len(model["wte.weight"]) // (128 * tp)) * 128 * tp
    noise = torch.full((rows - len(model["wte.weight"]), model["wte.weight"].shape[1]), 7.5)
    table = torch.cat((model["wte.weight"], noise)).chunk(tp)
    encoder = "transformer" if old else "encoder"
    step = root / ("release" if tracker == "release" else f"iter_{int(tracker):07d}")
    for stage in range(pp):
        for rank in range(tp):
            state: dict[str, Any] = {"iteration": 500, **more}
            if version:
                state["checkpoint_version"] = version
            if said is not None:
                state["args"] = Namespace(**said)
            for piece in range(virtual):
                first = (piece * pp + stage) * each
                inner = rank_layers(model, list(range(first, first + each)), heads, tp, rank, int(version), old)
                language: dict[str, Any] = {encoder: inner}
                last = stage == pp - 1 and piece == virtual - 1
                if stage == 0 and piece == 0:
                    language["embedding"] = {
                        "word_embeddings": {"weight": table[rank].clone()},
                        "position_embeddings": {"weight": model["wpe.weight"]},
                    }
                if last:
                    inner |= {f"final_layernorm.{part}": model[f"ln_f.{part}"] for part in ("weight", "bias")}
                state["model" if virtual == 1 else f"model{piece}"] = {"language_model": language} | (
                    {"word_embeddings_for_head": {"weight": table[rank].clone()}} if last and pp > 1 else {}
                )
            if core:
                for key in [key for key in state if key.startswith("model")]:
                    state[key] = core_names(state[key], core == "te")
            folder = step / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else ""))
            folder.mkdir(parents=True)
            torch.save(state, folder / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(tracker)
    return root
