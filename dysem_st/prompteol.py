"""PromptEOL, the baseline that the method starts from: the final hidden state at the same prompt's last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import prompts
from .tokens import Prompt, pad

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ENGLISH = prompts.TEMPLATES["eng_Latn"]


@torch.inference_mode()
def prompteol(
    model: SentenceTransformer, texts: Sequence[str], *, template: str = ENGLISH, batch_size: int = 32
) -> Tensor:
    """Return PromptEOL vectors with a DySem model's LLM.

    Args:
        model: A DySem model; its views do not matter.
        texts: Texts, read as they are.
        template: The prompt, with ``{text}`` once.
        batch_size: Texts a pass.

    Returns:
        ``[n, d]`` float32 on the CPU: the last hidden state, after the final norm, at the prompt's last token.
    """
    reader = model[0]
    model.eval()
    head, tail = prompts.split(prompts.check_template("template", template))
    filled = [Prompt(head, prompts.normalise(text), tail) for text in texts]
    rows, _ = reader.prompt_tokenizer.encode(filled, reader.max_seq_length)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    parts = []
    for start in range(0, len(order), batch_size):
        ids, mask = (part.to(model.device) for part in pad([rows[i] for i in order[start : start + batch_size]]))
        states = reader.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        parts.append(states[torch.arange(len(ids), device=states.device), mask.sum(-1) - 1].float().cpu())
    out = torch.empty(len(rows), reader.get_embedding_dimension())
    if parts:
        out[order] = torch.cat(parts)
    return out
