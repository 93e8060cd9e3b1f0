"""One rank of horovod.run(): python -m horovod.runner.run_task FOLDER"""

import os
import sys
import traceback

try:
    import cloudpickle as _pickle
except ImportError:
    import pickle as _pickle


def _save(folder, rank, ok, value):
    path = os.path.join(folder, "result.%s" % rank)
    with open(path + ".part", "wb") as f:
        _pickle.dump((ok, value), f)
    os.replace(path + ".part", path)


def main(folder):
    """Call the function that lies in the folder and leave its result there."""
    rank = os.environ.get("HOROVOD_RANK", "0")
    function = os.path.join(folder, "function")
    if not os.path.exists(function):
        raise SystemExit(
            "horovod.run: %s is not on this host; functions reach only hosts that share "
            "the launching host's temporary folder" % function
        )
    with open(function, "rb") as f:
        func, args, kwargs = _pickle.load(f)
    try:
        value = func(*args, **kwargs)
        _save(folder, rank, True, value)
    except BaseException:
        _save(folder, rank, False, traceback.format_exc())
        raise


if __name__ == "__main__":
    main(sys.argv[1])
