"""One lock for each shared object, so that two models on one LLM or one tokenizer do not disturb each other."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

_locks: WeakKeyDictionary[object, threading.RLock] = WeakKeyDictionary()
_registry = threading.Lock()


def lock_of(shared: object) -> threading.RLock:
    """Return the lock of an object, the same one for every caller in this process.

    The lock is kept beside the object and not on it: objects with locks on them neither pickle nor copy.
    """
    with _registry:
        lock = _locks.get(shared)
        if lock is None:
            lock = _locks[shared] = threading.RLock()
        return lock
