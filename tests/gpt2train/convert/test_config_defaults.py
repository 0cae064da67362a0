"""Fields that a `config.json` leaves out: they have the values of the classes of transformers."""

from pathlib import Path
from typing import Any

import pytest

from gpt2train.convert.hf_layout import layout_of_config
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

DECODER = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 96, "head_dim": 24}
DECODER |= {"num_attention_heads": 32, "num_key_value_heads": 4}
# Model type -> class of transformers, sizes that are none of its defaults, and further fields.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_inner": 100, "n_positions": 64}, {}),
    "llama": ("LlamaConfig", DECODER, {}),
    "qwen2": ("Qwen2Config", DECODER, {}),
    "qwen3": ("Qwen3Config", DECODER, {}),
    "arcee": ("ArceeConfig", DECODER, {}),
    "mistral": ("MistralConfig", DECODER, {"max_position_embeddings": 2048}),
    "t5": ("T5Config", {"d_model": 48, "num_heads": 4, "num_layers": 2, "d_kv": 12, "d_ff": 80}, {}),
}


def read(config: dict[str, Any]) -> Shape | str:
    """The shape, or the reason for which it is refused."""
    try:
        return layout_of_config(config, Path("config.json")).shape(config, Path("config.json"))
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("model_type", KINDS)
@pytest.mark.parametrize("sized", [False, True], ids=["defaults", "sizes"])
def test_a_field_that_is_left_out_has_the_value_of_transformers(model_type: str, sized: bool) -> None:
    """A size may be refused in its place: a model of unknown width cannot be checked against its weights."""
    transformers = pytest.importorskip("transformers", minversion="5")
    name, sizes, fields = KINDS[model_type]
    make = getattr(transformers, name)
    whole = make(**fields, **(sizes if sized else {})).to_dict()
    assert isinstance(read(whole), Shape)
    for key in sorted(whole.keys() - {"model_type", "architectures", "layer_types"}):
        left = {name: value for name, value in whole.items() if name not in (key, "layer_types")}
        theirs = make(**{name: value for name, value in left.items() if name != "model_type"}).to_dict()
        ours = read(left)
        assert ours == read(theirs) or (isinstance(ours, str) and "is missing; expected a whole number" in ours), key
