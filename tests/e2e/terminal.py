"""A terminal for a command, driven by lines on stdin:
    expect SECONDS TEXT     TEXT comes, behind what was expected before
    send TEXT               keys
    size ROWS COLUMNS       of the window
    shell COMMAND           runs it meanwhile; it must succeed
    kill SIGNAL             to the command
    sane                    the terminal is not raw
    end SECONDS STATUS      the command ends so; 128 + n: by a signal
TEXT has Python's escapes. usage: terminal.py LOG COMMAND... ; LOG gets all that is shown."""
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

log, command = open(sys.argv[1], "wb", buffering=0), sys.argv[2:]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
seen = b""

def fail(why):
    sys.stderr.write("terminal.py: %s; it showed:\n%s\n" % (why, seen[-3000:].decode("utf-8", "replace")))
    os.kill(pid, signal.SIGKILL)
    sys.exit(1)

def read_some(until):
    """False: the terminal has ended."""
    global seen
    left = until - time.monotonic()
    if left > 0 and select.select([fd], [], [], left)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            return False
        log.write(data)
        seen += data
        return data != b""
    return True

for line in sys.stdin:
    word, _, rest = line.rstrip("\n").partition(" ")
    if word == "expect":
        seconds, _, text = rest.partition(" ")
        text = text.encode().decode("unicode_escape").encode("latin-1")
        until = time.monotonic() + float(seconds)
        while text not in seen:
            if time.monotonic() > until:
                fail("%r did not come within %s s" % (text, seconds))
            if not read_some(until) and text not in seen:
                fail("the terminal ended before %r" % text)
        seen = seen[seen.index(text) + len(text):]
    elif word == "send":
        data = rest.encode().decode("unicode_escape").encode("latin-1")
        while data:
            data = data[os.write(fd, data):]
    elif word == "size":
        rows, columns = map(int, rest.split())
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    elif word == "shell":
        status = os.system(rest)
        if status != 0:
            fail("%s: status %d" % (rest, status))
    elif word == "kill":
        os.kill(pid, getattr(signal, rest))
    elif word == "sane":
        until = time.monotonic() + 5
        while termios.tcgetattr(fd)[3] & (termios.ICANON | termios.ECHO) != termios.ICANON | termios.ECHO:
            if time.monotonic() > until:
                fail("the terminal is left raw")
            time.sleep(0.01)
    elif word == "end":
        seconds, status = rest.split()
        until = time.monotonic() + float(seconds)
        while True:
            done, how = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > until:
                fail("not ended within %s s" % seconds)
            read_some(min(until, time.monotonic() + 0.1))
        code = os.WEXITSTATUS(how) if os.WIFEXITED(how) else 128 + os.WTERMSIG(how)
        if code != int(status):
            fail("status %d, not %s" % (code, status))
        break
    else:
        fail("what is %r?" % line)
