"""Small models of real classes, made here: nothing is downloaded, and everything is seeded."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = [
    "This sentence means in one word a man is playing the guitar and a woman eats an apple.",
    "Cette phrase veut dire en un mot. Dieser Satz bedeutet mit einem Wort. Esta frase quiere decir.",
    "この文を一語で表すと この句子用一个词来概括是 Это предложение одним словом означает",
]
# One small configuration an architecture; each keeps the features that its residual stream depends on.
COMMON = {"vocab_size": 400, "max_position_embeddings": 256, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1}
GQA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 2}
CONFIGS: dict[str, tuple[str, dict]] = {
    "llama": ("llama", GQA),
    "mistral": ("mistral", GQA),
    "qwen2": ("qwen2", GQA),
    "qwen3": ("qwen3", GQA),
    "qwen2_moe": ("qwen2_moe", {**GQA, **MOE, "shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("qwen3_moe", {**GQA, **MOE}),
    "mixtral": ("mixtral", {**GQA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3": ("phi3", {**GQA, "resid_pdrop": 0.3, "original_max_position_embeddings": 256}),
    "gemma": ("gemma", GQA),
    "gemma2": ("gemma2", {**GQA, "sliding_window": 8}),
    "gemma3_text": ("gemma3_text", {**GQA, "sliding_window": 8}),
    "olmo": ("olmo", GQA),
    "olmo2": ("olmo2", GQA),
    "olmo3": ("olmo3", {**GQA, "sliding_window": 8}),
    "smollm3": ("smollm3", GQA),
    "starcoder2": ("starcoder2", {**GQA, "residual_dropout": 0.3}),
    "granite": ("granite", {**GQA, "residual_multiplier": 0.22, "embedding_multiplier": 3.0}),
    "cohere": ("cohere", GQA),
    "cohere2": ("cohere2", {**GQA, "sliding_window": 8}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 256, "resid_pdrop": 0.3}),
    "gpt_neox": ("gpt_neox", {**GQA, "hidden_dropout": 0.3, "use_parallel_residual": True}),
    "gpt_neox-sequential": ("gpt_neox", {**GQA, "use_parallel_residual": False}),
    "falcon": ("falcon", {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "parallel_attn": True}),
    "falcon-sequential": (
        "falcon",
        {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "parallel_attn": False, "alibi": True},
    ),
    "falcon-new": (
        "falcon",
        {
            "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_kv_heads": 2,
            "new_decoder_architecture": True,
        },
    ),
}  # fmt: skip


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that adds a beginning-of-sequence token, as most LLMs' do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(VOCABULARY, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")


def make_body(name: str) -> torch.nn.Module:
    """The tiny random body of a configuration above."""
    return random_body(*CONFIGS[name])


def random_body(model_type: str, settings: dict) -> torch.nn.Module:
    """A tiny random body whose norms have random weights too, so that reading past one shows."""
    torch.manual_seed(0)
    body = AutoModel.from_config(AutoConfig.for_model(model_type, **{**COMMON, **settings})).float().eval()
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return body


@cache
def _folder(name: str, root: Path) -> Path:
    path = root / name
    make_body(name).save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A function from an architecture's name to a folder with a tiny base model and its tokenizer."""
    root = tmp_path_factory.mktemp("bases")
    return lambda name="llama": str(_folder(name, root))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the parallel STS data and the goldens: beside the checkout, or where DYSEM_SHARED says."""
    path = Path(os.environ.get("DYSEM_SHARED") or Path(__file__).parents[2] / "shared")
    if not (path / "goldens").is_dir():
        pytest.skip(f"the shared data is not at {path}; set DYSEM_SHARED")
    return path


@pytest.fixture
def no_network(monkeypatch):
    """Fail the test on any attempt to connect."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"an attempt to connect to {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
