"""Run a shell command in a process group of its own, and end all of it when asked to."""

import codecs
import os
import signal
import subprocess
import sys
import threading
import time

GRACEFUL_TERMINATION_TIME_S = 5


def terminate_executor_shell_and_children(pid):
    """SIGTERM to the process group of pid, SIGKILL to what is left after the grace time."""
    try:
        os.killpg(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    ends = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
    while time.monotonic() < ends:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            break
        time.sleep(0.02)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _read(source):
    """What has come, up to 64 KiB; empty at the end."""
    if hasattr(source, "fileno"):
        return os.read(source.fileno(), 65536)
    data = source.read(65536)
    return data.encode() if isinstance(data, str) else data


def prefix_connection(src_connection, dst_stream, prefix, index, prefix_output_with_timestamp):
    """Copy text from a pipe to a stream; each line begins with "[index]<prefix>:".

    Without index the text is copied as it is. Lines end at a newline or a carriage return.
    """

    def head():
        stamp = time.strftime("%a %b %d %H:%M:%S %Y") if prefix_output_with_timestamp else ""
        return "%s[%s]<%s>:" % (stamp, index, prefix)

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    at_start, ended = True, False
    while not ended:
        data = _read(src_connection)
        ended = not data
        text = decoder.decode(data, final=ended)
        if not text:
            continue
        if index is not None:
            parts = []
            for line in _lines(text):
                parts += [head(), line] if at_start else [line]
                at_start = line.endswith(("\n", "\r"))
            text = "".join(parts)
        dst_stream.write(text)
        dst_stream.flush()
    if index is not None and not at_start:
        dst_stream.write("\n")
        dst_stream.flush()


def _lines(text):
    start = 0
    for i, char in enumerate(text):
        if char in "\n\r":
            yield text[start : i + 1]
            start = i + 1
    if start < len(text):
        yield text[start:]


def execute(command, env=None, stdout=None, stderr=None, index=None, events=None,
            prefix_output_with_timestamp=False):
    """Exit status of a shell command; 128+n when signal n killed it.

    stdout, stderr  text streams for its output; None: this process's
    index           given: lines begin with "[index]<stdout>:"
    events          threading.Events; when one is set the command and all that it started
                    are ended
    """
    process = subprocess.Popen(command, shell=True, env=env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    readers = [
        threading.Thread(target=prefix_connection, daemon=True,
                         args=(pipe, stream, name, index, prefix_output_with_timestamp))
        for pipe, stream, name in (
            (process.stdout, sys.stdout if stdout is None else stdout, "stdout"),
            (process.stderr, sys.stderr if stderr is None else stderr, "stderr"),
        )
    ]
    for reader in readers:
        reader.start()
    done = threading.Event()

    def watch(event):
        while not done.is_set():
            if event.wait(0.1):
                terminate_executor_shell_and_children(process.pid)
                return

    watchers = [threading.Thread(target=watch, args=(event,), daemon=True)
                for event in events or ()]
    for watcher in watchers:
        watcher.start()
    try:
        status = process.wait()
    except BaseException:
        terminate_executor_shell_and_children(process.pid)
        process.wait()
        raise
    finally:
        done.set()
    for thread in watchers + readers:
        thread.join(GRACEFUL_TERMINATION_TIME_S)
    return status if status >= 0 else 128 - status
