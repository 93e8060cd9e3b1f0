"""Functions in threads."""

import queue
import threading


def execute_function_multithreaded(fn, args_list, block_until_all_done=True,
                                   max_concurrent_executions=1000):
    """Call fn(*args) for each args of the list, several at once.

    Returns {index: result} when all are done; None at once without block_until_all_done.
    An exception of fn is raised here.
    """
    work = queue.Queue()
    for item in enumerate(args_list):
        work.put(item)
    results, errors = {}, []

    def run():
        while not errors:
            try:
                index, args = work.get_nowait()
            except queue.Empty:
                return
            try:
                results[index] = fn(*args)
            except Exception as error:  # handed to the caller
                errors.append(error)

    threads = [in_thread(run) for _ in range(min(max_concurrent_executions, len(args_list)))]
    if not block_until_all_done:
        return None
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    """A started thread. silent: exceptions of target are not shown."""
    if not isinstance(args, tuple):
        raise ValueError("args must be a tuple, not %s, for a single argument use (arg,)"
                         % type(args))

    def quiet(*arguments):
        try:
            target(*arguments)
        except Exception:
            pass

    thread = threading.Thread(target=quiet if silent else target, args=args, name=name,
                              daemon=daemon)
    thread.start()
    return thread


def on_event(event, func, args=(), stop=None, check_stop_interval_s=1.0, daemon=True,
             silent=False):
    """A started thread that calls func(*args) once event is set, unless stop is set first."""
    if event is None:
        raise ValueError("Event must not be None")
    if not isinstance(args, tuple):
        raise ValueError("args must be a tuple, not %s, for a single argument use (arg,)"
                         % type(args))

    def wait():
        if stop is None:
            event.wait()
        while stop is not None and not event.wait(check_stop_interval_s):
            if stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)
