#!/usr/bin/python3
"""Tables from the JSON lines of scripts/bench.sh: medians over the repetitions, ratios, goals.

usage: table.py FILE [--json OUT] [--svg OUT] [--readme README]
--readme puts the short table between the markers <!-- bench --> and <!-- /bench --> there.
"""
import argparse
import json
import math
import re
import statistics
import sys

KIB, MIB = 1 << 10, 1 << 20
SIZES = {4: "4 B", KIB: "1 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 16 * MIB: "16 MiB", 64 * MIB: "64 MiB",
         256 * MIB: "256 MiB"}
COLORS = {"hvd": "#c0392b", "hvd shared": "#e67e22", "hvd raw": "#f1c40f", "hvd tcp": "#8e44ad", "direct": "#7f8c8d",
          "openmpi": "#2980b9", "openmpi tuned": "#1abc9c", "openmpi tcp": "#34495e", "mpich": "#27ae60",
          "gloo": "#2c3e50", "horovod": "#d35400", "horovod cycle 0": "#a04000"}


def short(us):
    if us is None:
        return "-"
    return "%.2f" % us if us < 10 else "%.1f" % us if us < 1000 else "{:,.0f}".format(us)


def percent(value):
    return "-" if value is None else "%+.1f" % value


class Run:
    """Medians by what was measured."""

    def __init__(self, path):
        self.machine, self.missing, self.turns, samples = {}, {}, {}, {}
        with open(path, encoding="utf-8") as f:
            for line in f:
                r = json.loads(line)
                if "machine" in r:
                    self.machine = r
                elif "missing" in r:
                    self.missing[r["missing"]] = r["why"]
                elif r.get("part") == "sweep":
                    turn = self.turns.setdefault((r["np"], r["beside"], r.get("step", r.get("bytes")), r["turn"]), {})
                    turn["default" if r["peer"] == "default" else "set"] = r["med_us"]
                else:
                    for key, value in self.keys(r):
                        samples.setdefault(key, []).append(value)
        for (np, name, what, _), turn in self.turns.items():
            if len(turn) == 2:
                samples.setdefault(("sweep", np, name, what), []).append((turn["default"] / turn["set"] - 1) * 100)
        self.samples = samples

    @staticmethod
    def keys(r):
        if "ceiling" in r:
            return [(("ceiling", r["ceiling"], r["np"], r["unit"]), r["value"])]
        if "idle_s" in r:
            return [(("idle", r["np"], r["peer"]), r["worst_rank_cpu_ms"] / r["idle_s"] / 10)]
        if "launch" in r:
            return [(("launch", r["launch"], r["np"], r["peer"]), r["ms"])]
        if "mb_s" in r:
            return [(("output", r["np"], r["peer"]), r["mb_s"]), (("torn", r["np"], r["peer"]), r["torn"])]
        if "control" in r:
            key = (r["control"], r["np"], r["peer"])
            return [(("control " + name,) + key, r[name]) for name in ("in", "out", "med_us", "p99_us")]
        what = r.get("step", r.get("bytes"))
        kind = "steps" if "step" in r else "time"
        return [((kind, r["np"], r["peer"], what), r["med_us"]), ((kind + " p99", r["np"], r["peer"], what), r["p99_us"])]

    def get(self, *key):
        found = self.samples.get(key)
        return statistics.median(found) if found else None

    def ratio(self, kind, np, ours, theirs, what):
        """How many times longer theirs takes than ours."""
        a, b = self.get(kind, np, ours, what), self.get(kind, np, theirs, what)
        return b / a if a and b else None

    def best(self, kind, np, peers, what):
        found = [(self.get(kind, np, p, what), p) for p in peers]
        found = [f for f in found if f[0]]
        return min(found)[1] if found else None

    def names(self, kind, index):
        return sorted({k[index] for k in self.samples if k[0] == kind}, key=str)


# ---- goals: (row, np, what is compared, value, at least, aim); of times x the peer's time by ours

def ratios(run, rows, row, np, kind, ours, what, wanted):
    for peer, least, aim in wanted:
        value = run.ratio(kind, np, ours, peer, what)
        rows.append((row, np, "x " + peer, value, least, aim, peer))


def share(run, rows, row, np, ours, what, least, aim):
    ratio = run.ratio("time", np, ours, "direct", what)
    rows.append((row, np, "% of the ceiling", ratio * 100 if ratio else None, least, aim, "direct"))


def at_most(rows, row, np, text, value, most, peer):
    rows.append((row, np, text, value, -most if most is not None else None, None, peer))


def goals(run):
    rows = []
    big, mid = 64 * MIB, 16 * MIB
    mpis = ("openmpi", "openmpi tuned", "openmpi tuned, packed", "mpich")
    ratios(run, rows, "64 MiB, ordinary tensors", 2, "time", "hvd", big,
           (("openmpi", 4, None), ("openmpi tuned", 1.5, None), ("gloo", 6, None), ("horovod", 8, None)))
    share(run, rows, "64 MiB, ordinary tensors", 2, "hvd", big, 60, 80)
    ratios(run, rows, "64 MiB, ordinary tensors", 4, "time", "hvd", big,
           (("openmpi", 4, None), ("openmpi tuned", 1.7, None), ("gloo", 5, None), ("horovod", 8, None)))
    for np, least in ((2, 7), (4, 8)):
        ratios(run, rows, "64 MiB, hvd_alloc", np, "time", "hvd shared", big, (("openmpi", least, None),))
        share(run, rows, "64 MiB, hvd_alloc", np, "hvd shared", big, 90, None)
    ratios(run, rows, "16 MiB, ordinary tensors", 2, "time", "hvd", mid, (("openmpi", 2.3, 3),))
    ratios(run, rows, "16 MiB, hvd_alloc", 2, "time", "hvd shared", mid, (("openmpi", 8, 10),))
    for size in (4, KIB):
        ratios(run, rows, "raw plane, " + SIZES[size], 2, "time", "hvd raw", size, (("openmpi", 1, 2),))
    ratios(run, rows, "4 B by name", 2, "time", "hvd", 4, (("horovod", 100, None), ("horovod cycle 0", 30, None), ("openmpi", None, 0.2)))
    at_most(rows, "4 B by name", 2, "p99, us", run.get("time p99", 2, "hvd", 4), 100, "hvd")
    for np, least, aim in ((2, 1.1, 1.3), (4, 1.6, 1.8)):
        peer = run.best("time", np, ("openmpi tcp", "gloo"), big)
        if peer:
            ratios(run, rows, "TCP only, 64 MiB", np, "time", "hvd tcp", big, ((peer, least, aim),))
    ours, ceiling = run.get("time", 2, "hvd tcp", big), run.get("ceiling", "tcp", 2, "GB/s")
    value = 2 * big / ours / 1e3 / ceiling * 100 if ours and ceiling else None
    rows.append(("TCP only, 64 MiB", 2, "% of the socket ceiling", value, 70, None, "ceiling"))
    ratios(run, rows, "TCP only, raw plane, 4 B", 2, "time", "hvd raw tcp", 4, (("openmpi tcp", 0.909, None),))
    ratios(run, rows, "TCP only, 4 B", 2, "time", "hvd tcp", 4, (("openmpi tcp", 1 / 1.1, None), ("gloo", 10, None)))
    for np, horovod, aim, mpi in ((2, 6, 10, 3), (4, 10, 16, 4)):
        peer = run.best("steps", np, mpis, "resnet50")
        wanted = (("horovod", horovod, aim),) + (((peer, mpi, None),) if peer else ())
        for ours in ("hvd", "hvd shared"):
            ratios(run, rows, "C step, 161 gradients" + (", hvd_alloc" if "shared" in ours else ""), np, "steps", ours, "resnet50", wanted)
    ratios(run, rows, "C step, 1000 x 1 KiB", 2, "steps", "hvd", "small", (("openmpi", 2, None), ("horovod", 20, None)))
    for np in (2, 4):
        for what, row in (("torch resnet50", "torch step, 161 gradients"), ("torch small", "torch step, 1000 x 1 KiB")):
            ratios(run, rows, row, np, "steps", "hvd", what, (("ddp", 1.5, None), ("horovod", 3, None)))
    ratio = run.ratio("steps", 2, "c beside tensorflow", "tensorflow", "tensorflow resnet50")
    at_most(rows, "TensorFlow step, 161 gradients", 2, "x the same from C", ratio, 1.25, "tensorflow")
    for np in (8, 32, 64):
        launch(run, rows, "hvdrun true", "true", np, (("mpich", 1, None), ("spawn", None, 1 / 2.5)))
    launch(run, rows, "hvdrun true, 4 hosts by ssh", "true, 4 hosts", 4, (("mpich", 1, None), ("openmpi", 1, None)))
    at_most(rows, "hvdrun true, 4 hosts by ssh", 4, "ms", run.get("launch", "true, 4 hosts", 4, "hvd"), 1000, "hvd")
    launch(run, rows, "hvdrun, init, exit", "init", 2, (("mpich", 2, None),))
    launch(run, rows, "hvdrun, init, exit", "init", 64, (("openmpi", 10, None),))
    for np in run.names("idle", 1):
        at_most(rows, "idle job", np, "% of a core a rank", run.get("idle", np, "hvd"), 1, "hvd")
    for np in run.names("output", 1):
        for peer in ("mpich", "openmpi"):
            a, b = run.get("output", np, "hvd"), run.get("output", np, peer)
            rows.append(("output through hvdrun", np, "x " + peer, a / b if a and b else None, 1, None, peer))
    at_most(rows, "coordinator, a cached round", 1000, "p99 of a core, ms, each rank speaks", in_ms(run.get("control p99_us", "161 in 1", 1000, "a rank")), 10, "hvd")
    few, many = (run.get("control med_us", "161 in 4", np, "a host") for np in (256, 16384))
    at_most(rows, "coordinator, a step, hosts speak", 16384, "x the cost a rank at 256", many / few * 256 / 16384 if few and many else None, 1.25, "hvd")
    defaults(run, rows)
    return rows


def in_ms(us):
    return us / 1e3 if us is not None else None


def launch(run, rows, row, what, np, wanted):
    for peer, least, aim in wanted:
        a, b = run.get("launch", what, np, "hvd"), run.get("launch", what, np, peer)
        rows.append((row, np, "x " + peer, b / a if a and b else None, least, aim, peer))


def defaults(run, rows):
    """Worse than the best hand-set value, in percent."""
    keys = [k for k in run.samples if k[0] == "sweep"]
    for np in sorted({k[1] for k in keys}):
        for what in sorted({k[3] for k in keys}, key=str):
            slower = {k[2]: run.get(*k) for k in keys if k[1] == np and k[3] == what and k[2] != "default again"}
            if slower:
                best = max(slower, key=slower.get)
                at_most(rows, "defaults, " + SIZES.get(what, str(what)), np, "%% over the best (%s; noise %s)"
                        % (best, percent(run.get("sweep", np, "default again", what))), slower[best], 10, "hvd")


def met(value, least):
    if value is None or least is None:
        return None
    return value <= -least if least < 0 else value >= least


def in_words(run, g):
    row, np, text, value, least, aim, peer = g
    if value is None:
        return [row, str(np), text, "-", "-", "", "no " + peer if peer.split(" ")[0] in run.missing else "not measured"]
    need = "" if least is None else "at most %g" % -least if least < 0 else "%.3g" % least
    verdict = {True: "yes", False: "NO", None: ""}[met(value, least)]
    if aim is not None and value >= aim:
        verdict = "yes, and the aim"
    return [row, str(np), text, "%.3g" % value, need, "" if aim is None else "%.3g" % aim, verdict]


# ---- text

def lay_out(rows, left=1):
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print("  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip())


def print_machine(run):
    m = run.machine
    if not m:
        return
    print("%s, %d cores, Linux %s, load %.1f at the begin; %d repetitions" % (m["machine"], m["cores"], m["kernel"], m["load"], m["reps"]))
    print("versions: " + ", ".join("%s: %s" % v for v in sorted(m["versions"].items()) if v[1]))
    print("waits: " + m["waits"])
    for peer, why in run.missing.items():
        print("no %s: %s" % (peer, why))
    print("\nceilings")
    lay_out([["what", "processes", "value", ""]] + [[k[1], str(k[2]), "%.2f" % run.get(*k), k[3]]
                                                  for k in run.samples if k[0] == "ceiling"])


def print_times(run):
    for np in run.names("time", 1):
        sizes = sorted({k[3] for k in run.samples if k[0] == "time" and k[1] == np})
        peers = list(dict.fromkeys(k[2] for k in run.samples if k[0] == "time" and k[1] == np))
        print("\nallreduce, in-place f32 sum, np=%d: median us (p99)" % np)
        table = [["peer"] + [SIZES.get(b, str(b)) for b in sizes]]
        for p in peers:
            table.append([p] + ["%s (%s)" % (short(run.get("time", np, p, b)), short(run.get("time p99", np, p, b)))
                                if run.get("time", np, p, b) else "-" for b in sizes])
        lay_out(table)


def print_steps(run):
    for np in run.names("steps", 1):
        shapes = run.names("steps", 3)
        peers = list(dict.fromkeys(k[2] for k in run.samples if k[0] == "steps" and k[1] == np))
        print("\nexchange of one step, np=%d: median ms" % np)
        lay_out([["peer"] + shapes] + [[p] + ["%.2f" % (run.get("steps", np, p, s) / 1e3) if run.get("steps", np, p, s) else "-"
                                             for s in shapes] for p in peers])


def print_rest(run):
    rows = [[k[1], str(k[2]), k[3], "%.1f ms" % run.get(*k)] for k in run.samples if k[0] == "launch"]
    rows += [["output", str(k[1]), k[2], "%.0f MB/s, %d lines torn" % (run.get(*k), run.get("torn", *k[1:]))] for k in run.samples if k[0] == "output"]
    rows += [["idle", str(k[1]), k[2], "%.3f %% of a core" % run.get(*k)] for k in run.samples if k[0] == "idle"]
    if rows:
        print("\nlaunches, output, idle")
        lay_out([["what", "np", "peer", "median"]] + rows, 3)


def print_control(run):
    for step in run.names("control in", 1):
        print("\ncoordinator, simulated, tensors and portions of a step: %s" % step)
        table = [["ranks", "who speaks", "messages in", "out", "median ms", "p99 ms", "us a rank"]]
        for k in (k for k in run.samples if k[:2] == ("control in", step)):
            median, p99 = (run.get("control " + name, *k[1:]) for name in ("med_us", "p99_us"))
            table.append([str(k[2]), k[3], "%d" % run.get(*k), "%d" % run.get("control out", *k[1:]), "%.2f" % (median / 1e3),
                          "%.2f" % (p99 / 1e3), "%.1f" % (median / k[2])])
        lay_out(table, 2)


def print_sweep(run):
    for np in run.names("sweep", 1):
        whats = run.names("sweep", 3)
        print("\nsweep, np=%d: %% that the default beside it takes longer" % np)
        peers = list(dict.fromkeys(k[2] for k in run.samples if k[0] == "sweep" and k[1] == np))
        lay_out([["setting"] + [SIZES.get(w, str(w)) for w in whats]]
                + [[p] + [percent(run.get("sweep", np, p, w)) for w in whats] for p in peers])


# ---- a plot

def svg(run, path):
    nps = run.names("time", 1)
    width, height, pad = 560, 400, 60
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">'
           % (width * len(nps), height + 20), '<rect width="100%" height="100%" fill="white"/>']
    for column, np in enumerate(nps):
        cells = {k[2:4]: run.get(*k) for k in run.samples if k[0] == "time" and k[1] == np}
        sizes = sorted({c[1] for c in cells})
        low, high = math.floor(math.log10(min(cells.values()))), math.ceil(math.log10(max(cells.values())))

        def x(size):
            return column * width + pad + (width - pad - 130) * math.log2(size / sizes[0]) / max(1, math.log2(sizes[-1] / sizes[0]))

        def y(us):
            return height - pad + 20 - (height - pad - 10) * (math.log10(us) - low) / max(1, high - low)

        out.append('<text x="%d" y="16">in-place float32 allreduce, np=%d: microseconds</text>' % (column * width + pad, np))
        for power in range(low, high + 1):
            out.append('<line x1="%.0f" y1="%.1f" x2="%.0f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>'
                       % (x(sizes[0]), y(10 ** power), x(sizes[-1]), y(10 ** power), column * width + pad - 6, y(10 ** power) + 4, 10 ** power))
        for size in sizes:
            out.append('<text x="%.0f" y="%d" text-anchor="middle">%s</text>' % (x(size), height - 15, SIZES.get(size, str(size))))
        for i, peer in enumerate(dict.fromkeys(c[0] for c in cells)):
            color = COLORS.get(peer, "#000")
            points = [(x(s), y(cells[peer, s])) for s in sizes if (peer, s) in cells]
            out.append('<polyline fill="none" stroke="%s" stroke-width="%g" points="%s"/>'
                       % (color, 2.5 if peer.startswith("hvd") else 1.2, " ".join("%.1f,%.1f" % p for p in points)))
            out.append('<text x="%d" y="%d" fill="%s">%s</text>' % ((column + 1) * width - 122, 40 + 17 * i, color, peer))
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>"]) + "\n")


# ---- README

def readme(run, rows, path):
    begin, end = "<!-- bench -->", "<!-- /bench -->"
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit("table.py: %s needs the markers %s and %s once" % (path, begin, end))
    m = run.machine
    lines = ["", "%s, %d cores, Linux %s, %s, median of %d interleaved repetitions; times of the peer by ours unless a row says otherwise."
             % (m["machine"], m["cores"], m["kernel"], m["when"], m["reps"]),
             "Peers: %s." % ", ".join(k + " " + re.search(r"[0-9][0-9.]*", v).group() for k, v in sorted(m["versions"].items())
                                          if re.search("[0-9]", v) and k != "hvd"), "",
             "| what | ranks | compared | measured | goal | reached |", "| --- | --- | --- | --- | --- | --- |"]
    for g in rows:
        if g[3] is not None:
            row, np, what, value, need, aim, verdict = in_words(run, g)
            lines.append("| %s | %s | %s | %s | %s | %s |" % (row, np, what, value, need or "(%s)" % aim, verdict.replace("NO", "**no**")))
    for peer, why in run.missing.items():
        lines.append("\nNot compared with %s: %s." % (peer, why.rstrip(".")))
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    with open(path, "w", encoding="utf-8") as f:
        f.write(head + begin + "\n".join(lines) + "\n" + end + tail)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("file")
    p.add_argument("--json")
    p.add_argument("--svg")
    p.add_argument("--readme")
    args = p.parse_args()
    run = Run(args.file)
    rows = goals(run)
    print_machine(run)
    print_times(run)
    print_steps(run)
    print_rest(run)
    print_control(run)
    print_sweep(run)
    print("\ngoals: times of the peer by ours, unless it says otherwise")
    lay_out([["what", "np", "compared", "measured", "at least", "aim", "reached"]] + [in_words(run, g) for g in rows], 3)
    if args.json:
        medians = [{"key": list(k), "median": run.get(*k), "samples": v} for k, v in run.samples.items()]
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"machine": run.machine, "missing": run.missing, "medians": medians,
                       "goals": [dict(zip(("what", "np", "compared", "value", "least", "aim", "peer"), g), met=met(g[3], g[4])) for g in rows]},
                      f, indent=1)
    if args.svg and run.names("time", 1):
        svg(run, args.svg)
    if args.readme:
        readme(run, rows, args.readme)


main()
