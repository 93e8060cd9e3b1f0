"""Results that outlive the process, for a while."""

import functools
import json
import os
import threading
import time

_FILE = "cache.json"


class Cache:
    """Values by key in a file of a folder; forgotten when old or when the parameters change.

    Keys and values are what JSON can hold.
    """

    def __init__(self, cache_folder, cache_staleness_threshold_in_minutes, parameters_hash):
        self._path = os.path.join(cache_folder, _FILE)
        self._max_age_s = 60 * cache_staleness_threshold_in_minutes
        self._parameters_hash = str(parameters_hash)
        self._lock = threading.Lock()
        os.makedirs(cache_folder, mode=0o700, exist_ok=True)
        self._content = {"parameters_hash": self._parameters_hash, "values": {}}
        try:
            with open(self._path, encoding="utf-8") as f:
                found = json.load(f)
            if found["parameters_hash"] == self._parameters_hash:
                self._content["values"] = dict(found["values"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no cache is an empty cache

    def get(self, key):
        """The value; None when there is none or it is too old."""
        with self._lock:
            value, written = self._content["values"].get(repr(key), (None, 0))
        return value if time.time() - written < self._max_age_s else None

    def put(self, key, val):
        with self._lock:
            self._content["values"][repr(key)] = (val, time.time())
            part = "%s.%d" % (self._path, os.getpid())
            with open(part, "w", encoding="utf-8") as f:
                json.dump(self._content, f)
            os.replace(part, self._path)

    def parameters_hash(self):
        return self._parameters_hash


def use_cache():
    """Decorator: fn(..., fn_cache=None) looks into the cache first."""

    def wrap(fn):
        @functools.wraps(fn)
        def wrapper(*args, fn_cache=None, **kwargs):
            if fn_cache is None:
                return fn(*args, **kwargs)
            key = (fn.__name__, args, sorted(kwargs.items()))
            value = fn_cache.get(key)
            if value is None:
                value = fn(*args, **kwargs)
                fn_cache.put(key, value)
            return value

        return wrapper

    return wrap
