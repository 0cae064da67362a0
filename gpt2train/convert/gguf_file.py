"""Writing of a model as one GGUF file, by the library of llama.cpp's own converter, `gguf`."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt2train.convert.gguf_model import GGUFModel, gguf_model
from gpt2train.convert.gguf_tokenizer import GGUFTokenizer, gguf_tokenizer
from gpt2train.convert.settings import GGUFType
from gpt2train.errors import UserError
from gpt2train.extras import needs_extra
from gpt2train.model.lazy_weights import LazyWeights, beyond_half
from gpt2train.store.files import atomic_file, make_folder, write_error

REMEDY = "give another --to"
# Endings of what stays in float32.
IN_FULL = ("_norm.weight", "position_embd.weight", "attn_rel_b.weight", "rope_freqs.weight", ".bias")


def write_gguf(path: Path, weights: LazyWeights, tokenizer: Path, kind: GGUFType = "f32") -> tuple[str, ...]:
    """Write a model as a GGUF file, atomically; one tensor is in memory at a time.

    Norms, biases, positions, divisors of rotary frequencies and T5's attention biases stay in float32, as llama.cpp
    needs them.

    Args:
        path: file to write; it must not exist.
        weights: weights of the model.
        tokenizer: tokenizer folder of the model.
        kind: data type of the matrices; q8_0 has blocks of 32 numbers in 34 bytes, and a matrix whose rows are no
            multiple of 32 is written in f16.

    Returns:
        Notes for the user, where llama.cpp differs.

    Raises:
        UserError: gguf is not installed, the path exists or is not writable, or llama.cpp does not have a model or a
            tokenizer of this kind, or a number of the model is beyond the range of `kind`.
        RunError: the disk is full.
    """
    try:
        import gguf  # an extra
    except ImportError as error:
        raise needs_extra("gpt2train export", "gguf") from error
    if path.exists():
        raise UserError(f"{path} already exists; {REMEDY}, or remove it")
    model = gguf_model(weights)
    opened = gguf_tokenizer(tokenizer, weights.shape)
    try:
        make_folder(path.parent)
        with atomic_file(path) as draft:
            writer = gguf.GGUFWriter(draft, model.architecture)
            try:
                _write(writer, model, opened, kind)
            finally:
                writer.close()
    except OSError as error:
        raise write_error(path, error, REMEDY) from error
    return opened.notes


def _write(writer: Any, model: GGUFModel, tokenizer: GGUFTokenizer, kind: GGUFType) -> None:
    """Write metadata and tensors to an open writer."""
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in model.metadata.items():
        _add(writer, f"{model.architecture}.{key}", value)
    for key, entry in tokenizer.metadata.items():
        _add(writer, key, entry)
    types = {name: _type_of(name, stored.size, kind) for name, stored in model.tensors.items()}
    for name, stored in model.tensors.items():
        size = gguf.quant_shape_to_byte_shape(stored.size, types[name])
        writer.add_tensor_info(name, size, np.dtype(np.uint8), torch.Size(size).numel(), types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, stored in model.tensors.items():
        plain = stored.read(torch.float32).contiguous()
        if types[name] == gguf.GGMLQuantizationType.F16 and plain.half().isinf().any() and not plain.isinf().any():
            raise beyond_half(name)
        writer.write_tensor_data(gguf.quants.quantize(plain.numpy(), types[name]))


def _type_of(name: str, size: tuple[int, ...], kind: GGUFType) -> Any:
    """Data type of a tensor in the file."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if name.endswith(IN_FULL):
        return GGMLQuantizationType.F32
    wanted = GGMLQuantizationType[kind.upper()]
    return GGMLQuantizationType.F16 if size[-1] % GGML_QUANT_SIZES[wanted][0] else wanted


def _add(writer: Any, key: str, value: object) -> None:
    """Add a key with the type that llama.cpp expects: numbers are unsigned, and of 32 bits."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
