"""Checks that several arguments share."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, what: str) -> int:  # noqa: ANN401
    """Return a whole number as an `int`; numpy's and torch's integers are welcome, booleans and fractions are not.

    Args:
        name: The argument's name.
        value: What was given.
        what: What it counts, for the message.

    Raises:
        TypeError: It is not a whole number.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} is {what}, a whole number; got {value!r} of type {type(value).__name__}")
