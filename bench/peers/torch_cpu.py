#!/usr/bin/env python3
"""PyTorch doing the work of dsrows_peers on the CPU, eager and compiled, in BF16 and F32: medians in microseconds."""

import argparse
import sys
import time

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(0)

import torch_ops as ops

INDEX_SHAPES = [(n_rows, context) for n_rows in (1, 8) for context in (8192, 65536, 262144)] + [(64, 8192)]
ATTENTION_ROWS = [1, 8, 64]
TYPES = [("BF16", torch.bfloat16), ("F32", torch.float32)]


def measure_in_turn(calls, seconds):
    """calls: name to function. Samples are taken in turn, each after one untimed call."""
    samples = {name: [] for name in calls}
    end = time.monotonic() + seconds
    n = 0
    while n < 3 or time.monotonic() < end:
        for name, call in calls.items():
            call()
            begin = time.perf_counter()
            call()
            samples[name].append(1e6 * (time.perf_counter() - begin))
        n += 1
    for name, values in samples.items():
        values.sort()
        print(f"{name:<56} {values[0]:10.1f} {values[n // 2]:10.1f}", flush=True)


def variants(function, is_compiled):
    yield "eager", function
    if is_compiled:
        torch._dynamo.reset()
        yield "compiled", torch.compile(function, dynamic=False)


def indexer(n_rows, context, arguments):
    calls, n_wrong = {}, 0
    for type_name, dtype in TYPES:
        operands = ops.index_operands(n_rows, context, "cpu", dtype)
        for name, function in variants(ops.scores, arguments.compile):
            what = f"{name} {type_name}, {n_rows} rows, {context // ops.RATIO} keys"
            values = function(*operands)
            n_wrong += ops.note(f"scores, {what}", ops.scores_error(values, *operands))
            n_wrong += ops.note(f"top-k, {what}", ops.list_error(ops.top_k(values), values))
            calls[f"scores, {what}"] = lambda f=function, o=operands: f(*o)
            calls[f"scores + top-512, {what}"] = lambda f=function, o=operands: ops.top_k(f(*o))
    measure_in_turn(calls, arguments.seconds)
    return n_wrong


def attention(n_rows, arguments):
    calls, n_wrong = {}, 0
    for type_name, dtype in TYPES:
        operands = ops.attention_operands(n_rows, "cpu", dtype)
        for name, function in variants(ops.attention, arguments.compile):
            what = f"attention, {name} {type_name}, {n_rows} rows, {ops.N_SLOTS} slots"
            n_wrong += ops.note(what, ops.attention_error(function(*operands), *operands))
            calls[what] = lambda f=function, o=operands: f(*o)
    measure_in_turn(calls, arguments.seconds)
    return n_wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help="indexer, attention; both if none is named")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1, help="of samples for each shape")
    parser.add_argument("--compile", action="store_true", help="torch.compile too: it needs a C++ compiler, and time")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - {"indexer", "attention"}
    if unknown:
        parser.error(f"no section {sorted(unknown)[0]}")
    sections = arguments.sections or ["indexer", "attention"]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, wall clock")
    print(f"{'':<56} {'least':>10} {'median':>10}   (microseconds)", flush=True)
    n_wrong = 0
    with torch.inference_mode():
        if "indexer" in sections:
            n_wrong += sum(indexer(*shape, arguments) for shape in INDEX_SHAPES)
        if "attention" in sections:
            n_wrong += sum(attention(n, arguments) for n in ATTENTION_ROWS)
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
