#!/usr/bin/python3
"""Tables from the JSON lines of scripts/bench.sh: medians over the repetitions, and ratios.

usage: table.py FILE      the ratios say how many times faster hvd-shm is than each peer
"""
import json
import statistics
import sys

NAMES = {4: "4 B", 1 << 10: "1 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB",
         64 << 20: "64 MiB", 256 << 20: "256 MiB"}
OURS = "hvd-shm"


def short(us):
    return "%.2f" % us if us < 10 else "%.1f" % us if us < 1000 else "{:,.0f}".format(us)


def row(cells, width):
    return cells[0].ljust(16) + "".join(c.rjust(width) for c in cells[1:])


def main():
    runs, idle = {}, {}
    with open(sys.argv[1], encoding="utf-8") as f:
        for line in f:
            r = json.loads(line)
            if "idle_s" in r:
                idle.setdefault((r["np"], r["peer"], r["idle_s"]), []).append(r["worst_rank_cpu_ms"])
            else:
                runs.setdefault((r["np"], r["peer"]), {}).setdefault(r["bytes"], []).append(r)
    slower = []
    for np in sorted({key[0] for key in runs}):
        peers = [key[1] for key in runs if key[0] == np]
        sizes = sorted({b for key in runs if key[0] == np for b in runs[key]})
        median = {p: {b: statistics.median(r["med_us"] for r in rows) for b, rows in runs[np, p].items()}
                  for p in peers}
        print("\nnp=%d, in-place f32 sum, median us (median p99)" % np)
        print(row(["peer"] + [NAMES.get(b, str(b)) for b in sizes], 22))
        for p in peers:
            cells = []
            for b in sizes:
                if b in median[p]:
                    p99 = statistics.median(r["p99_us"] for r in runs[np, p][b])
                    cells.append("%s (%s)" % (short(median[p][b]), short(p99)))
                else:
                    cells.append("-")
            print(row([p] + cells, 22))
        if OURS not in median:
            continue
        print("np=%d, time of the peer / time of %s" % (np, OURS))
        for p in peers:
            if p == OURS:
                continue
            cells = []
            for b in sizes:
                both = b in median[p] and b in median[OURS]
                cells.append("%.2f" % (median[p][b] / median[OURS][b]) if both else "-")
            print(row([p] + cells, 22))
        for p in ("hvd-shm", "hvd-tcp"):
            for b in sizes:
                ours, gloo = median.get(p, {}).get(b), median.get("gloo", {}).get(b)
                if ours and gloo and ours > gloo:
                    slower.append("%s np=%d %s (%.2f of Gloo's speed)" % (p, np, NAMES.get(b, b), gloo / ours))
    for (np, peer, seconds), values in sorted(idle.items()):
        print("\nidle: %s np=%d: %.1f ms CPU on the worst rank in %g s (median of %d)"
              % (peer, np, statistics.median(values), seconds, len(values)))
    print("\nslower than Gloo: " + (", ".join(slower) if slower else
                                    "nowhere" if any("gloo" == k[1] for k in runs) else "not measured"))


main()
