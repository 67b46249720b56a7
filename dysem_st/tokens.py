"""Prompts to token ids: the template whole, its text shortened where it must be, no special token from a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .locks import lock_of


class Prompt(NamedTuple):
    """A filled template in three parts; ``text`` is the only one that may be shortened."""

    head: str
    text: str
    tail: str


class PromptTokenizer:
    """Tokenises prompts with a Hugging Face tokenizer.

    Args:
        tokenizer: A fast or slow tokenizer. What it adds by default in front (a beginning-of-sequence token) stays;
            what it adds behind is dropped, since the method reads the prompt's own last token.
    """

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401
        self.tokenizer = tokenizer
        special = {str(token) for token in getattr(tokenizer, "all_special_tokens", [])}
        special |= {
            token.content for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special
        }
        longest_first = sorted((token for token in special if token), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def encode(self, prompts: Sequence[Prompt], max_length: int) -> tuple[list[list[int]], list[int]]:
        """Tokenise prompts, shortening the text of those that do not fit.

        Args:
            prompts: Filled templates.
            max_length: The most tokens a row may have.

        Returns:
            The token ids of each prompt, and the positions of those whose text was shortened.

        Raises:
            ValueError: A template alone, without any text, is longer than ``max_length``.
        """
        rows = self._encode(prompts)
        shortened = [position for position, row in enumerate(rows) if len(row) > max_length]
        for position in shortened:
            rows[position] = self._shorten(prompts[position], len(rows[position]), max_length)
        return rows, shortened

    def _shorten(self, prompt: Prompt, length: int, max_length: int) -> list[int]:
        row = self._encode([prompt._replace(text="")])[0]
        if len(row) > max_length:
            raise ValueError(
                f"max_seq_length={max_length} is less than the {len(row)} tokens of the template "
                f"{prompt.head + '{text}' + prompt.tail!r} itself; raise max_seq_length (model.max_seq_length = ...)"
            )
        # Find the longest prefix that fits. `fits` and `over` are lengths in characters known to fit and not to fit.
        fits, over = 0, len(prompt.text)
        guess = over * (max_length - len(row)) // max(length - len(row), 1)
        probes = [guess, min(2 * guess + 64, over)]
        while over - fits > 1:
            cut = probes.pop(0) if probes else (fits + over) // 2
            if not fits < cut < over:
                continue
            candidate = self._encode([prompt._replace(text=prompt.text[:cut])])[0]
            if len(candidate) <= max_length:
                fits, row = cut, candidate
            else:
                over = cut
        return row

    def _encode(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        if self._special is None:
            return self._plain(["".join(prompt) for prompt in prompts], special=False)
        # A template may hold special tokens; a text may only look as if it did.
        in_template = [bool(self._special.search(prompt.head + "\0" + prompt.tail)) for prompt in prompts]
        in_both = [
            flag and bool(self._special.search(prompt.text)) for flag, prompt in zip(in_template, prompts, strict=True)
        ]
        rows: list[list[int]] = [[] for _ in prompts]
        for special in (False, True):
            chosen = [i for i, flag in enumerate(in_template) if flag == special and not in_both[i]]
            encoded = self._plain(["".join(prompts[i]) for i in chosen], special=special)
            for i, row in zip(chosen, encoded, strict=True):
                rows[i] = row
        for i, both in enumerate(in_both):
            if both:
                head, text, tail = prompts[i]
                (first,) = self._plain([head], special=True)
                (middle,) = self._plain([text], special=False, add=False)
                (last,) = self._plain([tail], special=True, add=False)
                rows[i] = first + middle + last
        return rows

    def _plain(self, strings: list[str], *, special: bool, add: bool = True) -> list[list[int]]:
        if not strings:
            return []
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return self._slow(strings, special, add)
        # Straight to the backend: a call on the tokenizer sets padding, truncation and special tokens on shared state
        # each time, which fails under threads ("Already borrowed").
        with lock_of(self.tokenizer), _plain_settings(backend, special):
            encodings = backend.encode_batch(strings, add_special_tokens=add)
        return [_without_trailing(encoding.ids, encoding.special_tokens_mask) for encoding in encodings]

    def _slow(self, strings: list[str], special: bool, add: bool) -> list[list[int]]:
        """Tokenise with a tokenizer written in Python, few of which tell which of their tokens they added."""
        bare = self.tokenizer(strings, add_special_tokens=False, split_special_tokens=not special)["input_ids"]
        if not add:
            return [list(ids) for ids in bare]
        full = self.tokenizer(strings, split_special_tokens=not special)["input_ids"]
        rows = []
        for ids, inner in zip(full, bare, strict=True):
            ends = [end for end in range(len(ids), -1, -1) if list(ids[max(end - len(inner), 0) : end]) == list(inner)]
            rows.append(list(ids[: ends[0]] if ends and inner else ids))
        return rows


@contextmanager
def _plain_settings(backend: Any, special: bool) -> Iterator[None]:  # noqa: ANN401
    """Turn truncation and padding off, and special tokens in a text on or off; put everything back afterwards."""
    truncation, padding, split = backend.truncation, backend.padding, backend.encode_special_tokens
    try:
        if truncation is not None:
            backend.no_truncation()
        if padding is not None:
            backend.no_padding()
        backend.encode_special_tokens = not special
        yield
    finally:
        backend.encode_special_tokens = split
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def _without_trailing(ids: list[int], special: list[int]) -> list[int]:
    end = len(ids)
    while end > 1 and special[end - 1]:
        end -= 1
    return list(ids[:end])


def pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Pad rows on the right: under a causal mask every real token then computes what it computes alone.

    The filler is each row's own last token and not the tokenizer's padding token, whose embedding may hold anything:
    a masked NaN would still reach the row, since 0 times NaN is NaN.

    Args:
        rows: Token ids, possibly empty, of N prompts.

    Returns:
        ``input_ids`` and ``attention_mask``, both ``[N, T]`` integers.
    """
    width = max((len(row) for row in rows), default=0)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for position, row in enumerate(rows):
        if row:
            ids[position] = row[-1]
            ids[position, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[position, : len(row)] = 1
    return ids, mask
