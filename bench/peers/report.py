"""Summaries, JSON and markdown of a run."""

from __future__ import annotations

import json
import math
import statistics

# metric key, heading, unit, higher is better
METRICS = [
    ("W1", "W1 enqueue", "jobs/s", True),
    ("W2x1", "W2 drain, 1 process", "jobs/s", True),
    ("W2x2", "W2 drain, 2 processes", "jobs/s", True),
    ("W2x1.first", "W2, 1 process, from first handler", "jobs/s", True),
    ("W2x2.first", "W2, 2 processes, from first handler", "jobs/s", True),
    ("W3.p50", "W3 pickup p50", "ms", False),
    ("W3.p95", "W3 pickup p95", "ms", False),
    ("W3.p99", "W3 pickup p99", "ms", False),
    ("W4.filled", "W4 drain with backlog", "jobs/s", True),
    ("W4.ratio", "W4 backlog / empty", "x", True),
    ("W5", "W5 workflows", "wf/s", True),
    ("W6", "W6 fans of 100", "wf/s", True),
]


def pct(xs, p):
    xs = sorted(xs)
    return round(xs[min(len(xs) - 1, max(0, math.ceil(len(xs) * p / 100) - 1))], 3)


def med(xs):
    return statistics.median(xs) if xs else None


def summarise(r: dict) -> dict:
    peer = {s["name"]: s.get("peer", True) for s in r["systems"]}
    out: dict = {"systems": {}}
    keys = sorted({(s["system"], s["config"]) for s in r["samples"]})
    for system, config in keys:
        mine = [s for s in r["samples"] if (s["system"], s["config"]) == (system, config)]
        m: dict = {}

        def put(key, xs, m=m):
            if xs:
                m[key] = {"median": round(med(xs), 4), "min": min(xs), "max": max(xs), "n": len(xs)}

        ok = [s for s in mine if "error" not in s]
        for w in ("W1", "W2x1", "W2x2", "W5", "W6"):
            put(w, [s["rate"] for s in ok if s["workload"] == w])
        for w in ("W2x1", "W2x2"):
            put(w + ".first", [s["rate_from_first"] for s in ok if s["workload"] == w and s.get("rate_from_first")])
        w3 = [x for s in ok if s["workload"] == "W3" for x in s["from_commit_ms"]]
        missing = sum(s["of"] - s["seen"] for s in ok if s["workload"] == "W3")
        if w3 or missing:
            pool = w3 + [math.inf] * missing  # a job never picked up counts as infinitely late
            for p in (50, 95, 99):
                v = pct(pool, p)
                m[f"W3.p{p}"] = {"median": v if math.isfinite(v) else None, "n": len(pool)}
        w4 = [s for s in ok if s["workload"] == "W4"]
        put("W4.ratio", [s["ratio"] for s in w4])
        put("W4.filled", [s["filled"]["rate"] for s in w4])
        put("W4.empty", [s["empty"]["rate"] for s in w4])
        drains = [s for s in ok if s["workload"] == "W2x1"]
        cost = {}
        for k in ("commits_per_job", "wal_per_job", "worker_cpu_ms_per_job", "server_cpu_ms_per_job"):
            if drains:
                cost[k] = round(med([s[k] for s in drains]), 4)
        out["systems"].setdefault(system, {})[config] = {
            "metrics": m,
            "cost_W2x1": cost,
            "capped": any(s.get("capped") for s in drains),
            "errors": [s["error"] for s in mine if "error" in s],
        }

    best = {}
    for key, _, _, up in METRICS:
        cand = [
            (v["best"]["metrics"][key]["median"], n)
            for n, v in out["systems"].items()
            if peer.get(n, True) and "best" in v and v["best"]["metrics"].get(key, {}).get("median") is not None
        ]
        if cand:
            best[key] = dict(zip(("value", "system"), max(cand) if up else min(cand), strict=False))
    out["best_peer"] = best
    out["ratio_to_best_peer"] = {}
    for n, v in out["systems"].items():
        if peer.get(n, True):
            continue
        for config, d in v.items():
            rs = {}
            for key, *_ in METRICS:
                x = d["metrics"].get(key, {}).get("median")
                if x is not None and key in best and best[key]["value"]:
                    rs[key] = round(x / best[key]["value"], 3)
            out["ratio_to_best_peer"][f"{n}/{config}"] = rs
    return out


def fmt(v, up=True, key=""):
    if v is None:
        return "-"
    x = v["median"]
    if x is None:
        return "never"
    if key == "W4.ratio":
        return f"{x:.2f}"
    if not up:
        return f"{x:.2f}" if x < 100 else f"{x:.0f}"
    return f"{x:,.0f}" if x >= 20 else f"{x:.1f}"


def spread(v):
    if not v or "min" not in v or v["n"] < 2:
        return ""
    return f" ({v['min']:,.0f}..{v['max']:,.0f})" if v["max"] >= 20 else f" ({v['min']:.2f}..{v['max']:.2f})"


def table(head, rows):
    out = ["| " + " | ".join(head) + " |", "|" + "|".join("---" for _ in head) + "|"]
    return out + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]


def markdown(r: dict) -> str:
    s = r["summary"]
    {x["name"]: x for x in r["systems"]}
    best = s["best_peer"]
    p = r["parameters"]
    out = [
        f"# Peers, {r['date']}",
        "",
        f"{r['machine']['cpu']}, {r['machine']['cores']} cores, {r['machine']['memory_mb']} MB; "
        f"PostgreSQL {r['postgres']['version']} ("
        + ", ".join(
            f"{k}={v}"
            for k, v in r["postgres"]["settings"].items()
            if k in ("shared_buffers", "max_connections", "synchronous_commit", "fsync")
        )
        + "); "
        f"Python {r['machine']['python']}; {p['reps']} repetitions interleaved, medians (min..max); "
        f"run took {r['seconds'] / 60:.0f} min.",
        "",
        "## Best configuration",
        "",
    ]
    rows = []
    for x in r["systems"]:
        d = s["systems"].get(x["name"], {}).get("best")
        if not d:
            continue
        row = [f"{x['name']} {x['version']}"]
        for key, _, _, up in METRICS:
            v = d["metrics"].get(key)
            text = fmt(v, up, key)
            if best.get(key, {}).get("system") == x["name"]:
                text = f"**{text}**"
            if key.startswith(("W1", "W2", "W5", "W6", "W4.filled")):
                text += spread(v)
            row.append(text)
        rows.append(row)
    out += table(["system"] + [f"{h}, {u}" for _, h, u, _ in METRICS], rows)
    out += ["", "**bold**: best peer, the one to beat.", ""]
    for n, rs in s["ratio_to_best_peer"].items():
        out.append(f"- {n} against the best peer: " + ", ".join(f"{k} {v:g}x" for k, v in rs.items()))
    out += ["", "## Cost of one job in W2 (1 process, best configuration)", ""]
    rows = []
    for x in r["systems"]:
        d = s["systems"].get(x["name"], {}).get("best")
        if d and d["cost_W2x1"]:
            c = d["cost_W2x1"]
            rows.append(
                [
                    x["name"],
                    x.get("event_rows", 0),
                    c["commits_per_job"],
                    c["wal_per_job"],
                    f"{c['worker_cpu_ms_per_job'] * 1000:.0f}",
                    f"{c['server_cpu_ms_per_job'] * 1000:.0f}",
                    x["dag"] or "-",
                    json.dumps(x["configs"]["best"]),
                ]
            )
    out += table(
        [
            "system",
            "event rows",
            "commits",
            "WAL bytes",
            "worker CPU us",
            "server CPU us",
            "how W5 is done",
            "configuration",
        ],
        rows,
    )
    rows = []
    for x in r["systems"]:
        for config, d in s["systems"].get(x["name"], {}).items():
            if config == "best":
                continue
            m = d["metrics"]
            rows.append(
                [x["name"], config, fmt(m.get("W2x1"))]
                + [fmt(m.get(f"W3.p{q}"), False) for q in (50, 95, 99)]
                + [fmt(m.get("W5")), json.dumps(x["configs"][config])]
            )
    if rows:
        out += ["", "## Other configurations", ""]
        out += table(
            ["system", "configuration", "W2 drain, jobs/s", "W3 p50, ms", "p95", "p99", "W5, wf/s", "settings"], rows
        )
    c1, c2 = r.get("ceiling_before") or {}, r.get("ceiling_after") or {}
    if c1:
        out += ["", "## Ceiling of this machine (no queue library)", ""]

        def show(v):
            if v is None:
                return "-"
            return " / ".join(f"{x:.2f}" for x in v.values()) if isinstance(v, dict) else f"{v:,.0f}"

        out += table(
            ["what", "before the run", "after"],
            [
                [k + (" (p50 / p95 / p99)" if isinstance(v, dict) else ""), show(v), show(c2.get(k))]
                for k, v in c1.items()
            ],
        )
    errors = [(n, c, e) for n, v in s["systems"].items() for c, d in v.items() for e in d["errors"]]
    if errors:
        out += ["", "## Errors", ""] + [
            f"- {n}/{c}: {e.strip().splitlines()[-1][:200] if e.strip() else '?'}" for n, c, e in errors
        ]
    return "\n".join(out) + "\n"


def dumps(r: dict) -> str:
    """JSON with one sample per line."""
    head = {k: v for k, v in r.items() if k != "samples"}
    text = json.dumps(head, indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(s) for s in r["samples"])
    return f'{text},\n "samples": [\n  {lines}\n ]\n}}\n'
