"""Naive re-implementations that the tests compare with: plain loops over one unpadded row, nothing of the package."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Block(NamedTuple):
    """What one block computes at every token of one row, each ``[T, d]``."""

    attention_output: Tensor
    ffn_output: Tensor
    attention_added: Tensor
    ffn_added: Tensor
    state: Tensor


def trace(body: nn.Module, family: str, ids: Tensor) -> tuple[Tensor, list[Block]]:
    """Recompute every block of a body on one row ``[T]``, step by step: the state before the first, and the blocks.

    The body runs once to show with which mask and positions it calls its blocks; the states are the oracle's own.
    """
    step = STEPS[family]
    blocks = body.layers if hasattr(body, "layers") else body.h
    calls = []
    spies = [block.register_forward_pre_hook(_spy(block, calls), with_kwargs=True) for block in blocks]
    with torch.no_grad():
        output = body(input_ids=ids[None], use_cache=False).last_hidden_state
        for spy in spies:
            spy.remove()
        start = state = calls[0]["hidden_states"].clone()
        traced = []
        for block, call in zip(blocks, calls, strict=True):
            attended = lambda x, module, call=call: _attend(module, x, call)  # noqa: E731
            a_output, f_output, a, f = step(block, state, attended)
            state = state + a + f
            traced.append(Block(a_output[0], f_output[0], a[0], f[0], state[0]))
        # The oracle itself is held to the body: its last state, normed, is what the body returns.
        torch.testing.assert_close(final_norm(body)(state), output, rtol=1e-4, atol=1e-5)
    return start[0], traced


def final_norm(body: nn.Module) -> nn.Module:
    """The norm that a body applies after its last block."""
    return next(getattr(body, name) for name in ("norm", "ln_f", "final_layer_norm") if hasattr(body, name))


def _spy(block: nn.Module, calls: list):
    signature = inspect.signature(block.forward)

    def spy(_module, args, kwargs):
        calls.append(signature.bind(*args, **kwargs).arguments)

    return spy


def _attend(module: nn.Module, x: Tensor, call: dict) -> Tensor:
    """Call an attention module with those of its block's arguments that it takes."""
    taken = inspect.signature(module.forward).parameters
    arguments = {**call, **call.get("kwargs", {})}
    return module(x, **{name: arguments[name] for name in list(taken)[1:] if name in arguments})[0]


def _pre_norm(block, x, attend):
    a = attend(block.input_layernorm(x), block.self_attn)
    f = block.mlp(block.post_attention_layernorm(x + a))
    return a, f, a, f


def _norm_around(block, x, attend):
    a = attend(block.input_layernorm(x), block.self_attn)
    added = block.post_attention_layernorm(a)
    f = block.mlp(block.pre_feedforward_layernorm(x + added))
    return a, f, added, block.post_feedforward_layernorm(f)


def _post_norm(block, x, attend):
    a = attend(x, block.self_attn)
    added = block.post_attention_layernorm(a)
    f = block.mlp(x + added)
    return a, f, added, block.post_feedforward_layernorm(f)


def _granite(block, x, attend):
    a = attend(block.input_layernorm(x), block.self_attn)
    f = block.mlp(block.post_attention_layernorm(x + 0.22 * a))
    return a, f, 0.22 * a, 0.22 * f


def _cohere(block, x, attend):
    normed = block.input_layernorm(x)
    a, f = attend(normed, block.self_attn), block.mlp(normed)
    return a, f, a, f


def _gpt2(block, x, attend):
    a = attend(block.ln_1(x), block.attn)
    f = block.mlp(block.ln_2(x + a))
    return a, f, a, f


def _gptj(block, x, attend):
    normed = block.ln_1(x)
    a, f = attend(normed, block.attn), block.mlp(normed)
    return a, f, a, f


def _gpt_neox(block, x, attend):
    a = attend(block.input_layernorm(x), block.attention)
    f = block.mlp(block.post_attention_layernorm(x))
    return a, f, a, f


def _gpt_neox_sequential(block, x, attend):
    a = attend(block.input_layernorm(x), block.attention)
    f = block.mlp(block.post_attention_layernorm(x + a))
    return a, f, a, f


def _falcon(block, x, attend):
    normed = block.input_layernorm(x)
    a, f = attend(normed, block.self_attention), block.mlp(normed)
    return a, f, a, f


def _falcon_sequential(block, x, attend):
    a = attend(block.input_layernorm(x), block.self_attention)
    f = block.mlp(block.post_attention_layernorm(x + a))
    return a, f, a, f


def _falcon_new(block, x, attend):
    a, f = attend(block.ln_attn(x), block.self_attention), block.mlp(block.ln_mlp(x))
    return a, f, a, f


# Read off each architecture's modeling file in transformers.
STEPS = {
    "llama": _pre_norm,
    "mistral": _pre_norm,
    "qwen2": _pre_norm,
    "qwen3": _pre_norm,
    "qwen2_moe": _pre_norm,
    "qwen3_moe": _pre_norm,
    "mixtral": _pre_norm,
    "phi3": _pre_norm,
    "gemma": _pre_norm,
    "olmo": _pre_norm,
    "smollm3": _pre_norm,
    "starcoder2": _pre_norm,
    "gemma2": _norm_around,
    "gemma3_text": _norm_around,
    "olmo2": _post_norm,
    "olmo3": _post_norm,
    "granite": _granite,
    "cohere": _cohere,
    "cohere2": _cohere,
    "gpt2": _gpt2,
    "gpt_neo": _gpt2,
    "gptj": _gptj,
    "gpt_neox": _gpt_neox,
    "gpt_neox-sequential": _gpt_neox_sequential,
    "falcon": _falcon,
    "falcon-sequential": _falcon_sequential,
    "falcon-new": _falcon_new,
}
