"""Where the supported architectures keep what their blocks add to the residual stream."""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from torch import nn

Component = Literal["attention", "ffn", "hidden"]
Readout = Literal["residual", "module"]

COMPONENTS: tuple[Component, ...] = ("attention", "ffn", "hidden")
READOUTS: tuple[Readout, ...] = ("residual", "module")


@dataclass(frozen=True)
class BlockLayout:
    """Where a decoder keeps its blocks, and a block the modules whose outputs enter the residual stream.

    All names are dotted module paths: ``layers`` from the decoder body, the others from one block.

    Args:
        layers: The list of blocks.
        attention: The attention block; its output is the "module" readout of attention.
        ffn: The feed-forward block; its output is the "module" readout of the feed-forward component.
        attention_added: The module whose output is added to the residual stream, where a norm follows attention.
        ffn_added: The same for the feed-forward block.
        scale: An attribute of a block that multiplies both contributions before they are added.
    """

    layers: str = "layers"
    attention: str = "self_attn"
    ffn: str = "mlp"
    attention_added: str | None = None
    ffn_added: str | None = None
    scale: str | None = None

    def to_dict(self) -> dict[str, str]:
        """Return the fields that are set, as they are stored in a model's configuration."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, str]) -> BlockLayout:
        """Build a layout from a mapping of field names.

        Raises:
            ValueError: A key is not a field of the layout.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"unknown layout fields {unknown}; a layout has {known}")
        return cls(**values)


_PRE_NORM = BlockLayout()
_POST_NORM = BlockLayout(attention_added="post_attention_layernorm", ffn_added="post_feedforward_layernorm")

# Keyed by `config.model_type`. Every entry is held to the identity and to an oracle in tests/test_residual.py.
# On pre-norm models `post_attention_layernorm` is the norm *before* the feed-forward block and is not a contribution.
LAYOUTS: dict[str, BlockLayout] = {
    "llama": _PRE_NORM,
    "mistral": _PRE_NORM,
    "qwen2": _PRE_NORM,
    "qwen3": _PRE_NORM,
    "qwen2_moe": _PRE_NORM,
    "qwen3_moe": _PRE_NORM,
    "mixtral": _PRE_NORM,
    "phi3": _PRE_NORM,
    "gemma": _PRE_NORM,
    "olmo": _PRE_NORM,
    "smollm3": _PRE_NORM,
    "starcoder2": _PRE_NORM,
    "cohere": _PRE_NORM,
    "cohere2": _PRE_NORM,
    "granite": BlockLayout(scale="residual_multiplier"),
    "gemma2": _POST_NORM,
    "gemma3_text": _POST_NORM,
    "olmo2": _POST_NORM,
    "olmo3": _POST_NORM,
    "gpt2": BlockLayout(layers="h", attention="attn"),
    "gpt_neox": BlockLayout(attention="attention"),
    "falcon": BlockLayout(layers="h", attention="self_attention"),
}


def unwrap(body: nn.Module) -> nn.Module:
    """Return the text decoder inside a body that PEFT or a multimodal model wraps."""
    get_base_model: Any = getattr(body, "get_base_model", None)
    if get_base_model is not None and hasattr(body, "peft_config"):
        body = get_base_model()
    return getattr(body, "language_model", body)


def width_of(body: nn.Module) -> int:
    """Return d, the width of the residual stream."""
    config: Any = unwrap(body).config
    return int(config.hidden_size)


def find_layout(body: nn.Module) -> BlockLayout:
    """Return the layout of a body by its ``config.model_type``.

    Raises:
        ValueError: The architecture is not a supported one.
    """
    config = getattr(unwrap(body), "config", None)
    model_type = getattr(config, "model_type", None)
    if model_type in LAYOUTS:
        return LAYOUTS[model_type]
    lists = [name for name, child in unwrap(body).named_modules() if isinstance(child, nn.ModuleList) and len(child)]
    children = []
    if lists:
        stack: Any = unwrap(body).get_submodule(lists[0])
        children = [name for name, _ in stack[0].named_children()]
    raise ValueError(
        f"{type(unwrap(body)).__name__} (model_type {model_type!r}) is not among the architectures whose residual "
        f"stream is known: {', '.join(sorted(LAYOUTS))}. Its lists of blocks are {lists or 'none'}, and the first "
        f"block of the first list holds {children or 'nothing'}. Tell where to look with "
        'layout={"layers": ..., "attention": ..., "ffn": ...} (see dysem_st.BlockLayout); what you give is checked '
        "against h^L = h^0 + A + F."
    )


def blocks_of(body: nn.Module, layout: BlockLayout) -> list[nn.Module]:
    """Return the decoder's blocks, first to last.

    Raises:
        ValueError: The layout names a module that the body or a block lacks.
    """
    decoder = unwrap(body)
    try:
        blocks = list(decoder.get_submodule(layout.layers))  # type: ignore[call-overload]
        for path in (layout.attention, layout.ffn, layout.attention_added, layout.ffn_added):
            if path is not None:
                blocks[0].get_submodule(path)
        if layout.scale is not None:
            float(getattr(blocks[0], layout.scale))
    except (AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"{type(decoder).__name__} does not have the layout {layout.to_dict()}: {error}") from error
    return blocks


def layer_range(layers: Any, n_layers: int, component: Component = "attention") -> tuple[int, int]:  # noqa: ANN401
    """Resolve a choice of layers to ``(first, last)``, both included, counted from 1 as in the paper.

    Args:
        layers: ``"all"``; one layer ``l`` alone; or a pair ``(first, last)``, so ``(1, l)`` sums up to layer ``l``.
            Negative numbers count from the end: ``(-4, -1)`` is the last four.
        n_layers: The number of blocks L.
        component: ``"hidden"`` is a state and not a sum: one layer, or a pair that begins at 1, selects the state
            after the (last) layer named.

    Raises:
        TypeError: ``layers`` has none of the forms above.
        ValueError: A layer lies outside 1..L, the pair runs backwards, or a hidden state is asked for a part.
    """
    if not isinstance(layers, (str, bool)) and hasattr(layers, "__index__"):
        layers = operator.index(layers)
    whole = isinstance(layers, int) and not isinstance(layers, bool)
    if isinstance(layers, str) and layers == "all":
        layers, whole = (1, n_layers), False
    if whole:
        pair = (layers, layers)
    elif isinstance(layers, (tuple, list)) and len(layers) == 2 and all(type(layer) is int for layer in layers):
        pair = (layers[0], layers[1])
    else:
        raise TypeError(f"layers={layers!r}: give 'all', one layer as an integer, or a pair (first, last) of integers")
    first, last = (layer + n_layers + 1 if layer < 0 else layer for layer in pair)
    if not 1 <= first <= last <= n_layers:
        raise ValueError(f"layers={layers!r}: this model has layers 1 to {n_layers}, and a pair runs from low to high")
    if component == "hidden":
        if first not in (1, last):
            raise ValueError(
                f"layers={layers!r}: component='hidden' is the state after one layer, not a sum over several; give "
                f"one layer, or (1, {last})"
            )
        return last, last
    return first, last
