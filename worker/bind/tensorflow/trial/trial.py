"""Two-process trial of the TensorFlow ops in libhvd_tf_trial.so.

    python trial.py LIBRARY               run every scenario, print a table
    python trial.py LIBRARY NAME...       run these scenarios

A scenario is a function of this file that both ranks call; a "pool" is the number of
inter-op threads; the pool "default, on one core" sets none and binds each rank to one
core. The ranks are two processes joined by a socket pair.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SHARED = ["eager", "function", "retrace", "nested", "while_dependent", "cond",
          "two_groups", "gather", "constants", "gradient", "no_gradient", "over",
          "saved_model", "keras_fit", "gil", "interrupt", "mismatch", "unwaited"]
ALONE = ["while_independent", "while_free", "separate_same", "separate_opposite",
         "same_name_ordered", "same_name_free", "overlap", "growth", "jit", "peer_lost",
         "async_now", "async_late"]
BOUND = ["separate_same", "separate_opposite"]  # also with each rank on one core
TIMEOUT_S = 60


# ---- parent -------------------------------------------------------------


def run_pair(library, pool, names):
    """Runs both ranks; returns how they ended and their output."""
    ends = socket.socketpair()
    ranks = []
    for rank, end in enumerate(ends):
        env = dict(os.environ, TRIAL_RANK=str(rank), TRIAL_FD=str(end.fileno()),
                   TRIAL_POOL=str(pool), TF_CPP_MIN_LOG_LEVEL="2",
                   PYTHONUNBUFFERED="1")
        if pool > 0:
            env["TF_NUM_INTEROP_THREADS"] = str(pool)
        if names == ["async_late"]:
            env["TRIAL_ASYNC_LATE"] = "1"
        ranks.append(subprocess.Popen(
            [sys.executable, __file__, "--rank", library] + names, env=env,
            pass_fds=[end.fileno()], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT))
    for end in ends:
        end.close()
    deadline = time.monotonic() + TIMEOUT_S
    texts, ends = [], []
    for rank in ranks:
        try:
            text, _ = rank.communicate(timeout=max(1, deadline - time.monotonic()))
            end = f"exit {rank.returncode}"
            if rank.returncode < 0:
                end = signal.Signals(-rank.returncode).name
        except subprocess.TimeoutExpired:
            rank.kill()
            text, _ = rank.communicate()
            end = "no end (killed)"
        texts.append(text)
        ends.append(end)
    return ends, texts


def main(library, names):
    for pool in (2, 1, 0):
        shared = [n for n in SHARED if n in names and pool > 0]
        runs = [shared] if shared else []
        runs += [[n] for n in ALONE if n in names and (pool > 0 or n in BOUND)]
        for run in runs:
            ends, texts = run_pair(library, pool, run)
            print(f"== pool {pool or 'default, on one core'}: {' '.join(run)}: "
                  f"rank 0 {ends[0]}, rank 1 {ends[1]}")
            for rank, text in enumerate(texts):
                for line in text.strip().splitlines()[-40:]:
                    if not line.startswith(("WARNING: All log", "I0000")):
                        print(f"  [{rank}] {line}", flush=True)


# ---- one rank -----------------------------------------------------------


class Rank:
    def __init__(self, library):
        self.rank = int(os.environ["TRIAL_RANK"])
        self.pool = int(os.environ["TRIAL_POOL"])
        if self.pool == 0:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import numpy
        import tensorflow
        self.np, self.tf = numpy, tensorflow
        if self.pool > 0:
            tensorflow.config.threading.set_inter_op_parallelism_threads(self.pool)
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)
        self.ops = tensorflow.load_op_library(library)
        self.c = ctypes.CDLL(library)
        self.c.trial_last_result.restype = ctypes.c_void_p
        self.c.trial_deallocs.restype = ctypes.c_long
        self.c.trial_dones.restype = ctypes.c_long

    def independent(self, op):
        """Exempt one op from automatic control dependencies (inside tf.function)."""
        manager = getattr(self.tf.compat.v1.get_default_graph(),
                          "experimental_acd_manager", None)
        if manager is None:
            return False
        manager.run_independently(op)
        return True

    def start(self, x, name, kind=0, free=True, over=False):
        if over:
            handle, _ = self.ops.hvd_trial_start_over(x, tensor_name=name)
        else:
            handle = self.ops.hvd_trial_start(x, tensor_name=name, kind=kind)
        if free and not self.tf.executing_eagerly():
            assert self.independent(handle.op)
        return handle

    def wait(self, handles, like):
        outs = self.ops.hvd_trial_wait_all(handles, Ts=[x.dtype for x in like])
        if not self.tf.executing_eagerly():
            for out, x in zip(outs, like):
                out.set_shape(x.shape)
        return outs

    def allreduce(self, x, name, free=True):
        return self.wait([self.start(x, name, free=free)], [x])[0]

    def mark(self, x, name):
        op = self.ops.hvd_trial_mark(x, tensor_name=name)
        if not self.tf.executing_eagerly():
            self.independent(op)

    def notes(self):
        buf = ctypes.create_string_buffer(1 << 18)
        self.c.trial_notes(buf, len(buf))
        lines = [line.split() for line in buf.value.decode().splitlines()]
        return [(what, name, float(ms)) for what, name, ms in lines]


def opposite(r, n):
    """0 .. n-1 on rank 0, n-1 .. 0 on rank 1."""
    return range(n) if r.rank == 0 else range(n - 1, -1, -1)


def reduce_opposite(r, xs, prefix, free=True):
    handles = [None] * len(xs)
    for i in opposite(r, len(xs)):
        handles[i] = r.start(xs[i], f"{prefix}/{i}", free=free)
    return r.wait(handles, xs)


def check(outs, want):
    for out, w in zip(outs, want):
        assert abs(float(out.numpy().ravel()[0]) - w) < 1e-5, (out, w)


def eager(r):
    xs = [r.tf.fill([4, 5], float(i + r.rank)) for i in range(8)]
    check(reduce_opposite(r, xs, "eager"), [2 * i + 1 for i in range(8)])
    bad = []
    try:
        r.start(r.tf.constant(1.0, dtype=r.tf.float64), "f64")
    except r.tf.errors.UnimplementedError as e:
        bad = [e.message.splitlines()[0]]
    return f"unsupported dtype raises: {bad}"


def function(r):
    for free in (True, False):
        @r.tf.function
        def f(xs):
            return reduce_opposite(r, xs, f"function{free}", free)
        for _ in range(5):
            outs = f([r.tf.fill([4, 5], float(i + r.rank)) for i in range(8)])
            check(outs, [2 * i + 1 for i in range(8)])
    return "Starts in opposite order on the ranks, with and without run_independently"


def retrace(r):
    @r.tf.function
    def f(x):
        return r.allreduce(x, "retrace")
    if r.rank == 1:  # traces twice more than rank 0
        f.get_concrete_function(r.tf.TensorSpec([3], r.tf.float32))
        f.get_concrete_function(r.tf.TensorSpec([7], r.tf.float32))
    check([f(r.tf.fill([2], 1.0 + r.rank))], [3])
    return "rank 1 traced three times, rank 0 once"


def nested(r):
    tf = r.tf

    @tf.function
    def first(x):
        return r.allreduce(x, "nested/first")

    @tf.function
    def second(x):
        return reduce_opposite(r, [x, 2 * x], "nested/second")

    @tf.function
    def outer(x):
        a = first(x)
        b, c = second(x)
        return a, b, c, r.allreduce(a + b, "nested/outer")
    for _ in range(5):
        check(outer(tf.fill([3], 1.0 + r.rank)), [3, 3, 6, 12])
    return ""


def while_dependent(r):
    tf = r.tf

    @tf.function
    def f(x):
        i = tf.constant(0)
        _, y = tf.while_loop(lambda i, y: i < 10,
                             lambda i, y: (i + 1, r.allreduce(y, "while/d") / 2.0),
                             [i, x])
        return y
    check([f(tf.fill([3], 1.0 + r.rank))], [1.5])
    return "every iteration needs the result of the one before"


def while_loop_of_slices(r, free):
    """Iterations that need nothing of one another, under one name; rank 1 is slow."""
    tf, steps = r.tf, 20
    big = tf.random.normal([512, 512])

    @tf.function
    def f(x):
        def body(i, acc):
            xi = x[i]
            r.mark(xi, "while/i")
            if r.rank == 1:
                xi += 0.0 * tf.reduce_sum(tf.matmul(big * xi[0], big))
            y = r.allreduce(xi, "while/i", free=free)
            return i + 1, acc.write(i, y)
        acc = tf.TensorArray(tf.float32, size=steps, element_shape=[1000])
        _, acc = tf.while_loop(lambda i, a: i < steps, body, [tf.constant(0), acc],
                               parallel_iterations=10)
        return acc.stack()
    r.notes()
    try:
        check([f(tf.fill([steps, 1000], 1.0 + r.rank))], [3])
        end = "sums right"
    except tf.errors.AbortedError as e:
        end = e.message.strip().splitlines()[-2]
    most = {}
    notes = r.notes()
    for label, begin, finish in (("begun", "mark", "done"),
                                 ("in flight", "start", "done")):
        depth = most[label] = 0
        for what, _, _ in notes:
            depth += (what == begin) - (what == finish)
            most[label] = max(most[label], depth)
    return f"{end}; most at once: {most}"


def while_independent(r):
    return while_loop_of_slices(r, free=False)


def while_free(r):
    return while_loop_of_slices(r, free=True)


def cond(r):
    tf = r.tf

    @tf.function
    def f(x):
        return tf.cond(x[0] > 0, lambda: r.allreduce(x, "cond"), lambda: x)
    check([f(tf.fill([3], 1.0 + r.rank))], [3])
    return ""


def two_groups(r):
    tf = r.tf

    @tf.function
    def f(x):
        a = reduce_opposite(r, [x, x + 1, x + 2], "two/a")
        b = reduce_opposite(r, [x + 3, x + 4, x + 5], "two/b")
        return a + b
    for _ in range(20):
        check(f(tf.fill([3], float(r.rank))), [1, 3, 5, 7, 9, 11])
    return "two grouped waits in one function, same program order on both ranks"


def separate(r, order):
    """A Start and a WaitAll for each tensor: what a loop over allreduce() is."""
    @r.tf.function
    def f(xs):
        outs = [None] * len(xs)
        for i in order:
            outs[i] = r.allreduce(xs[i], f"separate/{i}")
        return outs
    for _ in range(300):
        check(f([r.tf.fill([3], float(i + r.rank)) for i in range(8)]),
              [2 * i + 1 for i in range(8)])
    return "8 separate allreduces in a function"


def separate_same(r):
    return separate(r, range(8))


def separate_opposite(r):
    return separate(r, opposite(r, 8))


def same_name(r, free):
    """A layer with an allreduce inside that is called twice in one function."""
    @r.tf.function
    def f(x):
        return [r.allreduce(y, "layer", free=free) for y in (x, x + 1)]
    try:
        for _ in range(10):
            check(f(r.tf.fill([3], 1.0 + r.rank)), [3, 5])
    except r.tf.errors.AbortedError as e:
        return e.message.strip().splitlines()[-2]
    return "two allreduces of one name: sums right"


def same_name_ordered(r):
    return same_name(r, free=False)


def same_name_free(r):
    return same_name(r, free=True)


def gather(r):
    tf, np = r.tf, r.np

    @tf.function
    def f(x):
        h = r.start(x, "gather", kind=1)
        return r.ops.hvd_trial_wait_all([h], Ts=[tf.float32])[0]
    before = r.c.trial_deallocs()
    for call in (f, f.python_function):
        y = call(tf.fill([r.rank + 1, 4], float(r.rank)))
        want = np.array([[0.0] * 4, [1.0] * 4, [1.0] * 4], np.float32)
        assert np.array_equal(y.numpy(), want), y
        at = np.asarray(memoryview(y)).__array_interface__["data"][0]
        assert at == r.c.trial_last_result(), "copied"
        del y
    x = reduce_opposite(r, [tf.fill([4], 1.0)], "gather/sum")[0]
    at = np.asarray(memoryview(x)).__array_interface__["data"][0]
    assert at == r.c.trial_last_result(), "copied"
    freed = r.c.trial_deallocs() - before
    keeps = {o: r.c.trial_newtensor_keeps(o) for o in (0, 64, 32, 16, 8, 4)}
    return (f"no copy of a library-owned result, {freed} of 2 freed; "
            f"TF_NewTensor keeps memory at 128k + offset: {keeps}; "
            f"accepts NULL for an empty tensor: {r.c.trial_newtensor_empty()}")


def constants(r):
    tf = r.tf

    @tf.function
    def f():
        a = r.allreduce(tf.constant([1.0]), "constants/a")
        b = r.allreduce(tf.constant([1.0]), "constants/b")
        return a, b
    for _ in range(3):
        r.notes()
        check(f(), [2, 2])
        starts = [n for w, n, _ in r.notes() if w == "start"]
        assert len(starts) == 2, starts
    return "neither folded nor merged"


def gradient(r):
    tf = r.tf

    @tf.custom_gradient
    def reduce(x):
        y = r.allreduce(x, "gradient/forward")
        return y, lambda dy: r.allreduce(dy, "gradient/backward")

    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(reduce(x) * (1.0 + r.rank))
        return tape.gradient(y, x)
    for call in (f, tf.function(f)):
        check([call(tf.fill([3], 1.0))], [3])
    return "tf.custom_gradient around Start + WaitAll, eager and tf.function"


def no_gradient(r):
    """What tape.gradient makes of the bare ops, and of a registered gradient."""
    tf = r.tf

    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(r.allreduce(x, "no_gradient"))
        return tape.gradient(y, x)

    def outcome(call):
        try:
            return f"gives {call(tf.fill([3], 1.0))}"
        except Exception as e:  # the kind and text of the error are the result
            last = str(e).strip().splitlines()[-1].strip()
            return f"{type(e).__name__} ({last})"
    bare = [outcome(f), outcome(tf.function(f))]

    @tf.RegisterGradient("HvdTrialWaitAll")
    def refuse(op, *grads):
        raise NotImplementedError("use hvd.allreduce")
    refused = [outcome(f), outcome(tf.function(f))]
    return f"none registered: {bare}; registered: {refused}"


def over(r):
    """Does TensorFlow let a Start take over its input's memory?"""
    tf, layers = r.tf, 6
    v = tf.Variable(tf.fill([4], 2.0))
    weights = [tf.Variable(tf.fill([8, 8], 0.1)) for _ in range(layers)]

    def grads_of(x):
        with tf.GradientTape() as tape:
            for w in weights:
                x = tf.matmul(x, w)
            loss = tf.reduce_sum(x)
        return tape.gradient(loss, weights)

    def reduce(xs, name):
        hs = [r.start(x, f"over/{name}/{i}", over=True) for i, x in enumerate(xs)]
        return r.wait(hs, xs)
    cases = {"argument": lambda x: reduce([x], "argument"),
             "variable": lambda x: reduce([v.read_value()], "variable"),
             "constant": lambda x: reduce([tf.constant([2.0] * 4)], "constant"),
             "new value": lambda x: reduce([x * 3.0], "new"),
             "used twice": lambda x: (lambda y: [reduce([y], "twice")[0] - y])(x * 3.0),
             "6 gradients": lambda x: reduce(grads_of(tf.fill([2, 8], 1.0)), "grads")}
    seen = {}
    for how, wrap in (("eager", lambda f: f), ("function", tf.function)):
        for case, f in cases.items():
            x, call = tf.fill([4], 2.0), wrap(f)
            for _ in range(3):
                r.notes()
                outs = call(x)
            taken = sum(w == "over" for w, _, _ in r.notes())
            seen[f"{how} {case}"] = taken
            assert x.numpy()[0] == 2.0 and v.numpy()[0] == 2.0, "input overwritten"
            want = {"new value": 12.0, "used twice": 6.0}.get(case, 4.0)
            if case == "6 gradients":
                want = 2 * float(grads_of(tf.fill([2, 8], 1.0))[0][0, 0])
            assert abs(outs[0].numpy().ravel()[0] - want) < 1e-3 * want, (case, outs)
    return f"inputs taken over: {seen}"


def saved_model(r):
    """A function with the ops in it, saved, loaded back and called."""
    tf = r.tf
    m = tf.Module()
    m.f = tf.function(lambda x: r.allreduce(x, "saved"),
                      input_signature=[tf.TensorSpec([3], tf.float32)])
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(m, folder)
        loaded = tf.saved_model.load(folder)
    check([loaded.f(tf.fill([3], 1.0 + r.rank))], [3])
    return "saved and loaded"


def keras_fit(r):
    """model.fit with an optimizer whose apply() reduces first."""
    tf = r.tf
    tf.keras.utils.set_random_seed(7)

    class Reducing(tf.keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            hs = [r.start(g, f"fit/{i}") for i, g in enumerate(grads)]
            return super().apply([g / 2.0 for g in r.wait(hs, grads)],
                                 trainable_variables)
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"),
                                 tf.keras.layers.Dense(1)])
    model.compile(optimizer=Reducing(0.01), loss="mse")
    x = r.np.random.default_rng(r.rank).normal(size=(256, 8)).astype("float32")
    model.fit(x, x.sum(axis=1), batch_size=16, epochs=2, verbose=0)
    for i, w in enumerate(model.get_weights()):  # bit for bit
        assert r.np.array_equal(r.allreduce(w, f"fit/check/{i}"), 2 * w), w
    return (f"weights equal on both ranks after 32 steps, "
            f"jit_compile={model.jit_compile}")


def growth(r):
    """Resident memory over many steps that all look alike."""
    tf, steps = r.tf, 3000

    @tf.function
    def f(xs):
        return reduce_opposite(r, xs, "growth")
    lines = []
    for how, call in (("function", f), ("eager", f.python_function)):
        sizes = []
        for step in range(steps):
            call([tf.fill([10000], float(i + r.rank)) for i in range(4)])
            if step % 1000 == 999:
                with open("/proc/self/statm") as statm:
                    sizes.append(int(statm.read().split()[1]) * 4 // 1024)
        lines.append(f"{how} {sizes}")
    return (f"resident MiB after 1000, 2000, 3000 steps: {lines}; "
            f"live {r.c.trial_live()}")


def interrupt(r):
    """SIGINT during a wait: when does Python see it?"""
    lines = []
    for how in ("eager", "function"):
        f = r.tf.function(lambda x: r.allreduce(x, f"interrupt/{how}"))
        call = f if how == "function" else f.python_function
        x = r.tf.fill([3], 1.0)
        check([call(x)], [2])  # traced and warm
        if r.rank == 1:
            time.sleep(1.0)
            check([call(x)], [2])
            continue
        begin = time.monotonic()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            check([call(x)], [2])
            time.sleep(0)
            lines.append(f"{how}: no KeyboardInterrupt")
        except KeyboardInterrupt:
            seen = time.monotonic() - begin
            lines.append(f"{how}: sent at 0.3 s, seen at {seen:.1f} s")
    return f"the wait ended at 1.0 s; {lines}"


def gil(r):
    count, stop = [0], []

    def spin():
        while not stop:
            count[0] += 1
            time.sleep(0.001)
    thread = threading.Thread(target=spin)
    thread.start()
    h = None
    if r.rank == 0:
        h = r.start(r.tf.fill([3], 1.0), "gil")
        before = count[0]
        r.wait([h], [r.tf.zeros([3])])
        turns = count[0] - before
    else:
        time.sleep(0.5)
        r.allreduce(r.tf.fill([3], 1.0), "gil")
        turns = 100
    stop.append(1)
    thread.join()
    assert turns > 50, turns
    return f"other Python threads ran {turns} turns during an eager wait of 0.5 s"


def mismatch(r):
    tf = r.tf
    texts = []

    def f(x):
        return r.allreduce(x, "mismatch")
    for call in (f, tf.function(f)):
        try:
            call(tf.fill([2 + r.rank], 1.0))
        except tf.errors.AbortedError as e:
            texts.append((e.message.splitlines()[0], e.experimental_payloads))
        check([call(tf.fill([2], 1.0))], [2])
    assert len(texts) == 2
    assert r.c.trial_live() == 0
    return f"eager {texts[0]}; function {texts[1]}; next call works"


def unwaited(r):
    """A Start whose WaitAll never runs, because another op of the step failed."""
    tf = r.tf
    before, dones = r.c.trial_live(), r.c.trial_dones()

    @tf.function
    def f(x):
        h = r.start(x, "unwaited")
        with tf.control_dependencies([h, tf.debugging.Assert(x[0] > 99.0, [x])]):
            return r.wait([h], [x])[0]
    try:
        f(tf.fill([3], 1.0))
    except tf.errors.InvalidArgumentError:
        pass
    time.sleep(0.3)
    return (f"handles left behind: {r.c.trial_live() - before}, "
            f"inputs let go by done: {r.c.trial_dones() - dones}")


def overlap(r):
    """When does each Start run, when is each gradient ready? Times in ms."""
    tf, layers = r.tf, 6
    weights = [tf.Variable(tf.random.normal([768, 768]) / 30) for _ in range(layers)]
    x = tf.random.normal([512, 768])
    lines = []

    def plain(g, name):
        return r.start(g, name, free=False)

    def exempt(g, name):
        return r.start(g, name, free=True)

    def in_call(g, name):  # exempted in a function of its own, the call is not
        return tf.function(lambda g: r.start(g, name, free=True))(g)

    def exempt_call(g, name):
        handle = in_call(g, name)
        assert "Call" in handle.op.type and r.independent(handle.op)
        return handle
    forward, backward = range(layers), range(layers - 1, -1, -1)
    for label, order, start_of in (
            ("program order, ordered by ACD", forward, plain),
            ("program order, run_independently", forward, exempt),
            ("reverse order, ordered by ACD", backward, plain),
            ("program order, exempted inside a nested function", forward, in_call),
            ("program order, the nested call exempted too", forward, exempt_call)):
        tag = label.replace(" ", "_").replace(",", "")

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                h = x
                for w in weights:
                    h = tf.nn.relu(tf.matmul(h, w))
                loss = tf.reduce_sum(h)
            grads = tape.gradient(loss, weights)
            handles = [None] * layers
            for i in range(layers):
                r.mark(grads[i], f"{tag}/{i}")
            for i in order:
                handles[i] = start_of(grads[i], f"{tag}/{i}")
            return r.wait(handles, grads)
        for _ in range(4):
            r.notes()
            step()
        notes = r.notes()
        zero = min(ms for _, _, ms in notes)

        def when(what):
            return [round(ms - zero, 1) for i in range(layers) for w, n, ms in notes
                    if w == what and n == f"{tag}/{i}"]
        mark, start, done = when("mark"), when("start"), when("done")
        before = sum(s < min(mark[0], start[0]) for s in start)
        lines.append(f"{label}: {before} of {layers} Starts before gradient 0\n"
                     f"      gradient ready {mark}\n      Start          {start}\n"
                     f"      complete       {done}\n      wait begins    "
                     f"{[round(ms - zero, 1) for w, _, ms in notes if w == 'wait']}")
    return "layer 0 .. 5, layer 0 is the first\n    " + "\n    ".join(lines)


def jit(r):
    @r.tf.function(jit_compile=True)
    def f(x):
        return r.allreduce(x, "jit")
    try:
        f(r.tf.fill([3], 1.0))
    except Exception as e:  # the kind and text of the error are the result
        return f"{type(e).__name__}: {str(e).splitlines()[0][:300]}"
    return "works"


def peer_lost(r):
    if r.rank == 1:
        r.allreduce(r.tf.fill([3], 1.0), "peer/first")
        time.sleep(1)
        os._exit(0)
    r.allreduce(r.tf.fill([3], 1.0), "peer/first")
    f = r.tf.function(lambda x: r.allreduce(x, "peer/second"))
    try:
        f(r.tf.fill([3], 1.0))
    except r.tf.errors.AbortedError as e:
        return f"{e.message.splitlines()} {e.experimental_payloads}"
    return "no error"


def async_now(r):
    r.ops.hvd_trial_async()
    return f"done lives on the {r.notes()[-1][0]} (of the calling thread)"


def async_late(r):
    @r.tf.function
    def f():
        r.ops.hvd_trial_async()
        return r.tf.constant(1)
    for _ in range(20):
        f()
    return "20 late completions survived"


def rank_main(library, names):
    r = Rank(library)
    missing = ctypes.c_int()
    symbols = r.c.trial_symbols(ctypes.byref(missing))
    print(f"TensorFlow {r.tf.__version__}, {symbols} symbols, {missing.value} missing")
    if missing.value > 0:
        sys.exit(1)
    for name in names:
        result = globals()[name](r)
        print(f"{name}: ok {result}")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(sys.argv[2], sys.argv[3:])
    else:
        main(os.path.abspath(sys.argv[1]), sys.argv[2:] or SHARED + ALONE)
