#!/usr/bin/env python3
"""The table of figures that docs/performance.md gives for CPUs, measured in one go: each with what it should reach.

usage: bench/table.py [--dsrows FILE] [--threads N] [--seconds S] [--repeats N]

Ratios of least times. Everything runs in processes of `dsrows bench`, which times what is compared in turn, except where two
kinds of units are compared that one process cannot have. "F32" is without units for products of narrow numbers. Exit status
1 if a run fails, not if a figure is missed."""

import argparse
import json
import os
import subprocess
import sys
import time

SHAPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes")


F32 = {"DSR_WITHOUT": "avx512_bf16,amx_bf16,avx512_vnni,amx_int8"}


def quietest_cpu():
    """The CPU that runs this language fastest just now: neighbours on the machine slow some of them down."""
    allowed = os.sched_getaffinity(0)

    def least_time(cpu):
        os.sched_setaffinity(0, {cpu})
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            sum(range(50000))
            times.append(time.perf_counter() - begin)
        return sorted(times)[len(times) // 2]

    best = min(sorted(allowed), key=least_time)
    os.sched_setaffinity(0, allowed)
    return best


def bench(arguments, shapes, *options, pinned=False, environment=None):
    """The best of several runs, shape by shape: on a shared machine CPUs are slowed down for a while each. A pinned run is
    on the CPU that is fastest just then."""
    runs = [run_bench(arguments, shapes, options, {quietest_cpu()} if pinned else os.sched_getaffinity(0), environment)
            for _ in range(arguments.repeats)]
    best = min(runs, key=lambda run: sum(least(result) for result in run["results"]))
    best["results"] = [min(results, key=least) for results in zip(*(run["results"] for run in runs))]
    return best


def run_bench(arguments, shapes, options, cpus, environment):
    command = [arguments.dsrows, "bench", "--json", "--shapes", os.path.join(SHAPES, shapes)]
    command += ["--seconds", str(arguments.seconds), *options]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})},
                         preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    return json.loads(run.stdout)


def least(result, kind="joint"):
    return result[kind]["least_us"]


def fraction(result):
    """Of the multiply-add peak probed between the samples."""
    return result["fma_fraction"] * result["joint"]["median_us"] / least(result)


def short(shape):
    return shape.replace(" rows=1 ", " ")


def line(what, measured, target, unit, note=""):
    aim = "" if target is None else f"{target}{unit}"
    print(f"| {what} | {measured:.4g}{unit} | {aim} | {note} |", flush=True)


def peaks(arguments, isa, targets):
    run = bench(arguments, "table_ops.txt", "--isa", isa, pinned=True, environment=F32)
    for result in run["results"]:
        op = result["shape"].split()[0]
        line(f"{short(result['shape'])}, device-exact, F32, {run['isa']}: of FMA peak", 100 * fraction(result), targets[op], " %",
             f"{least(result):.0f} us")
    return run


def row_exact(arguments, f32):
    """Over the F32 kernels: in turn on AMX, else against the run before."""
    amx = f32["peaks"]["amx_gflops"] > 0 and "amx_bf16" not in os.environ.get("DSR_WITHOUT", "")
    run = bench(arguments, "table_ops.txt", "--exact", "row", *(["--versus", "exact=device"] if amx else []), pinned=True)
    for result, before in zip(run["results"], f32["results"]):
        is_indexer = result["shape"].startswith("indexer")
        target = (5 if amx else 1.85) if is_indexer else (4 if amx else 1.7)
        ratio = (least(result, "versus") if amx else least(before)) / least(result)
        line(f"{short(result['shape'])}: row-exact ({'AMX' if amx else 'AVX512-BF16'}) over F32", ratio, target, " x",
             f"{least(result):.0f} us")


def has_feature(name):
    """Of Linux's list, unless the environment refuses it."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
        flags = next((text for text in info if text.startswith("flags")), "")
    return name in flags.split() and name not in os.environ.get("DSR_WITHOUT", "").split(",")


def packed_caches(arguments):
    for unit, name, target in (("avx512_vnni", "AVX512-VNNI", 3), ("amx_int8", "AMX-INT8", 6)):
        if not has_feature(unit):
            continue
        others = [word for word in F32["DSR_WITHOUT"].split(",") if word != unit]
        run = bench(arguments, "table_fp4.txt", "--versus", "format=bf16", pinned=True,
                    environment={"DSR_WITHOUT": ",".join(others)})
        for result in run["results"]:
            line(f"{short(result['shape'])}, device-exact, {name}: BF16 keys in F32 chains over it",
                 least(result, "versus") / least(result), target, " x", f"{least(result):.0f} us")
    run = bench(arguments, "table_fp8.txt", "--versus", "format=bf16", pinned=True, environment=F32)
    for result in run["results"]:
        line(f"{short(result['shape'])}, device-exact, F32: over BF16 rows", least(result) / least(result, "versus"), 1, " x",
             f"{least(result):.0f} us")


def top_k(arguments):
    run = bench(arguments, "table_top_k.txt", pinned=True)
    results = iter(run["results"])
    for scores, selected in zip(results, results):
        line(f"{short(selected['shape'])}: with top-512 over top-32", least(selected) / least(scores), 1.10, " x")


def compressor(arguments):
    run = bench(arguments, "table_compressor.txt", pinned=True)
    for result in run["results"]:
        target = 5 if "ratio=4" in result["shape"] else 8
        line(f"{short(result['shape'])}: a plain loop with expf over it", least(result, "plain") / least(result), target,
             " x", f"{least(result):.1f} us")


def threads(arguments):
    run = bench(arguments, "table_threads.txt", "--thread-counts", f"1,{arguments.threads}")
    one, all_threads = ([r for r in run["results"] if r["threads"] == n] for n in (1, arguments.threads))
    limit = run["peaks"]["fma_all_gflops"] / run["peaks"]["fma_gflops"]
    for before, after in zip(one, all_threads):
        line(f"{after['shape']}: {arguments.threads} threads over 1", least(before) / least(after),
             13 if "context=262144" in after["shape"] else None, " x",
             f"{least(after):.0f} us; their multiply-add units give {limit:.1f} x")
    for result in all_threads:
        line(f"{result['shape']}: joint over row by row, {arguments.threads} threads",
             least(result, "alone") / least(result), 3 if "context=2048" in result["shape"] else None, " x",
             f"{least(result):.0f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsrows", default="build/release/dsrows")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=0.2, help="for a shape in a run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of everything (%(default)s)")
    arguments = parser.parse_args()
    print("| what | measured | target | |\n|---|---|---|---|")
    run = peaks(arguments, "auto", {"indexer": 93, "two-pass": 90, "flash": 90})
    if run["isa"] == "avx512":
        peaks(arguments, "avx2", {"indexer": 85, "two-pass": 85, "flash": 85})
        row_exact(arguments, run)
        packed_caches(arguments)
    top_k(arguments)
    compressor(arguments)
    if arguments.threads > 1:
        threads(arguments)
    line("encode, submit and wait for one value to gather", run["smallest_op_us"], 2, " us")
    print(f"\n{run['machine']}, {run['date']}; one thread: F32 multiply-add {run['peaks']['fma_gflops']:.0f} GFLOP/s, BF16 dot "
          f"{run['peaks']['bf16_gflops']:.0f}, AMX {run['peaks']['amx_gflops']:.0f}, memory read "
          f"{run['peaks']['read_gbytes']:.1f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
