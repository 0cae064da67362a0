"""Ranks of the package megatron-core on the CPU: GPTModel and its optimizers, saved and loaded by their own code.

    python -m tests.gpt2train.convert.megatron_core_peer JOBS.json        with RANK in the environment

A job saves a checkpoint after three steps, or loads one. Either way it writes the logits of the model then, and after
one more step. The gradient of each parameter is a function of its own values, so that it is the same on every layout.
"""

import contextlib
import functools
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

VOCAB, LAYERS, HEADS, HIDDEN, CONTEXT = 250, 4, 4, 32, 16
LR, BETAS, EPS, DECAY = 0.02, (0.9, 0.95), 1e-8, 0.1
TOKENS = torch.arange(2 * CONTEXT).reshape(2, CONTEXT) * 7 % VOCAB


class OnCpu(TorchFunctionMode):
    """Places on the CPU what megatron-core places on "cuda"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


def gradient(weight: Tensor) -> Tensor:
    """Gradient of a parameter in these tests."""
    return torch.sin(40 * weight)


class Training:
    """A model and its optimizer; `kind` is fp32, bf16 or distributed."""

    def __init__(self, kind: str, tp: int, pp: int, seed: int) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        torch.manual_seed(seed)
        self.kind, self.tp, self.pp, half = kind, tp, pp, kind != "fp32"
        dtype = torch.bfloat16 if half else torch.float32
        self.model, config = self.build(half)
        distributed = kind == "distributed"
        buckets = DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=True)
        wrapped = DistributedDataParallel(config, buckets, self.model)
        settings = OptimizerConfig(
            optimizer="adam", lr=LR, weight_decay=DECAY, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_eps=EPS,
            clip_grad=0.0, bf16=half, params_dtype=dtype, use_distributed_optimizer=distributed,
        )  # fmt: skip
        self.optimizer = get_megatron_optimizer(settings, [wrapped])
        for group in self.optimizer.param_groups:  # as Megatron-LM's schedule sets it
            group["weight_decay"] = DECAY * group["wd_mult"]

    def build(self, half: bool) -> Any:
        from megatron.core import parallel_state
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.transformer.transformer_config import TransformerConfig

        tp, pp = self.tp, self.pp
        dtype = torch.bfloat16 if half else torch.float32
        config = TransformerConfig(
            num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, use_cpu_initialization=True,
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, pipeline_dtype=dtype,
            attention_dropout=0.0, hidden_dropout=0.0, gradient_accumulation_fusion=False, bias_dropout_fusion=False,
            activation_func=functools.partial(F.gelu, approximate="tanh"), bf16=half, params_dtype=dtype,
        )  # fmt: skip
        rows = -(-VOCAB // (128 * tp)) * 128 * tp
        self.first, self.last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = GPTModel(
                config, get_gpt_layer_local_spec(normalization="LayerNorm"), vocab_size=rows, parallel_output=False,
                max_sequence_length=CONTEXT, pre_process=self.first, post_process=self.last,
                share_embeddings_and_output_weights=True, position_embedding_type="learned_absolute",
            )  # fmt: skip
        with torch.no_grad():
            for name, parameter in model.named_parameters():  # biases and norms are constant otherwise
                if parameter.dim() == 1:
                    whole = "linear_proj" in name or "linear_fc2" in name or "layernorm" in name
                    torch.manual_seed(len(name) + (0 if whole else parallel_state.get_tensor_model_parallel_rank()))
                    parameter.add_(torch.randn(parameter.shape) * 0.1)
        return model.bfloat16() if half else model, config

    def step(self) -> None:
        for parameter in self.model.parameters():
            parameter.main_grad.copy_(gradient(parameter.detach().float()))
        assert self.optimizer.step()[0]

    def logits(self) -> Tensor | None:
        """Logits on the last stage, [samples, context, VOCAB], by float32 products with the weights as they are."""
        from megatron.core import parallel_state

        model, _ = self.build(half=False)
        model.load_state_dict(self.model.state_dict())
        rank = dist.get_rank()
        stride = dist.get_world_size() // self.pp
        hidden = torch.empty(CONTEXT, len(TOKENS), HIDDEN)
        if not self.first:
            dist.recv(hidden, rank - stride)
            model.set_input_tensor(hidden)
        mask = torch.triu(torch.ones(1, 1, CONTEXT, CONTEXT), 1).bool()
        positions = torch.arange(CONTEXT).expand(len(TOKENS), -1)
        with torch.no_grad():
            out: Tensor = model(TOKENS, positions, mask)
        if not self.last:
            dist.send(out.contiguous(), rank + stride)
            return None
        return out[..., :VOCAB] if parallel_state.get_tensor_model_parallel_rank() == 0 else None


def metadata(sharding: str, per_layer: bool) -> dict[str, Any]:
    return {
        "singleton_local_shards": per_layer,
        "chained_optim_avoid_prefix": True,
        "distrib_optim_sharding_type": sharding,
        "distrib_optim_fully_reshardable_mem_efficient": True,
    }


def dist_state(training: Training, content: dict[str, Any], is_loading: bool) -> dict[str, Any]:
    """Sharded state of model and optimizer, as Megatron-LM builds it."""
    from megatron.core import parallel_state

    known = content | {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    model = training.model.sharded_state_dict(metadata=known)
    optimizer = training.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=known)
    return {"model": model, "optimizer": optimizer}


def save(job: dict[str, Any], training: Training, folder: Path, tp: int) -> None:
    from megatron.core import dist_checkpointing, parallel_state

    if job["form"] == "torch_dist":
        folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        content = metadata(job.get("sharding", "fully_reshardable"), job.get("per_layer", False))
        common = {"iteration": 3, "checkpoint_version": 3.0}
        dist_checkpointing.save(dist_state(training, content, False) | common, str(folder), content_metadata=content)
        return
    rank, stage = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
    place = folder / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if training.pp > 1 else ""))
    place.mkdir(parents=True)
    state = {
        "iteration": 3,
        "checkpoint_version": 3.0,
        "model": training.model.state_dict_for_save_checkpoint(),
        "optimizer": training.optimizer.state_dict(),
    }
    torch.save(state, place / "model_optim_rng.pt")
    if training.kind == "distributed":
        training.optimizer.save_parameter_state(str(place / "distrib_optim.pt"))


def load(job: dict[str, Any], training: Training, folder: Path) -> None:
    from megatron.core import dist_checkpointing, parallel_state

    if job["form"] == "torch_dist":
        content = dist_checkpointing.load_content_metadata(str(folder))
        assert content is not None
        state = dist_checkpointing.load(dist_state(training, content, True), str(folder))
    else:
        rank, stage = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
        place = folder / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if training.pp > 1 else ""))
        state = torch.load(place / "model_optim_rng.pt", weights_only=False)
    training.model.load_state_dict(state["model"])  # strict
    training.optimizer.load_state_dict(state["optimizer"])
    if job["form"] == "torch" and training.kind == "distributed":
        training.optimizer.load_parameter_state(str(place / "distrib_optim.pt"))


def complete_steps() -> None:
    """Let the distributed optimizer load a state: it asks each parameter's for a step, which no file has.

    That of torch's AdamW has one; those of Transformer Engine and Apex, which are used on GPUs, do not. The step is set
    before, from the parameter groups.
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    load_tensors = DistributedOptimizer._set_main_param_and_optimizer_states

    def with_step(self: Any, parameter: Tensor, tensors: dict[str, Tensor]) -> None:
        load_tensors(self, parameter, self._get_main_param_and_optimizer_states(parameter) | tensors)

    DistributedOptimizer._set_main_param_and_optimizer_states = with_step


def main(tp: int, pp: int, jobs: list[dict[str, Any]]) -> None:
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(tp, pp)
    tensor_parallel.get_cuda_rng_tracker().fork = contextlib.nullcontext  # no dropout
    complete_steps()
    for number, job in enumerate(jobs):
        training, folder = Training(job["kind"], tp, pp, 3 + number), Path(job["folder"])
        if job["do"] == "save":
            for _ in range(3):
                training.step()
            save(job, training, folder, tp)
        else:
            training.step()  # without Transformer Engine and Apex the distributed optimizer loads into a state only
            load(job, training, folder)
            for inner in training.optimizer.chained_optimizers:  # one tensor for all, which each would count up
                for state in inner.optimizer.state.values():
                    state["step"] = state["step"].clone()
        before = training.logits()
        training.step()
        after = training.logits()
        if before is not None:
            torch.save({"before": before, "after": after}, job["logits"])
        dist.barrier()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    given = json.loads(Path(sys.argv[1]).read_text())
    world, store = given["tp"] * given["pp"], f"file://{given['store']}"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=world)
    with OnCpu():
        main(given["tp"], given["pp"], given["jobs"])
    dist.destroy_process_group()
