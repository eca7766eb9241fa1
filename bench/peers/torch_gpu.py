#!/usr/bin/env python3
"""PyTorch doing the work of dsrows_gpu_bench on a CUDA device: eager and compiled, both also under a CUDA graph.

Prints microseconds in the columns of dsrows_gpu_bench. All shapes are measured eager first. Then they are compiled, which
takes most of the time; those whose turn would come after --budget seconds are left out.
"""

import argparse
import sys
import time

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(0)

import torch_ops as ops

SAMPLES = 101
INDEX_SHAPES = [(1, 65536), (8, 8192), (8, 65536), (8, 262144), (8, 1048576), (64, 8192)]
ATTENTION_ROWS = [1, 8, 64]


def n_sets(n_bytes):
    """Sets of operands used in turn, so that none of them waits in the L2 cache."""
    return min(16, 200_000_000 // n_bytes + 1)


def time_singles(calls, delay, begin, end):
    """Sorted times of single calls, with `delay` clock ticks of other work in the stream before each."""
    samples = []
    for i in range(SAMPLES):
        if delay:
            torch.cuda._sleep(delay)
        begin.record()
        calls[i % len(calls)]()
        end.record()
        end.synchronize()
        samples.append(1000 * begin.elapsed_time(end))
    return sorted(samples)


def measure(name, calls):
    """calls: the same work on each set of operands."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for call in calls + calls:
        call()
    idle = time_singles(calls, 0, begin, end)
    busy = time_singles(calls, 400_000, begin, end)
    begin.record()
    for i in range(SAMPLES):
        calls[i % len(calls)]()
    end.record()
    end.synchronize()
    in_a_row = 1000 * begin.elapsed_time(end) / SAMPLES
    print(
        f"{name:<52} {busy[0]:9.2f} {busy[SAMPLES // 2]:9.2f} {busy[SAMPLES * 9 // 10]:9.2f}"
        f" {idle[SAMPLES // 2]:9.2f} {in_a_row:9.2f}",
        flush=True,
    )


def as_graphs(calls):
    """Each call captured: replay of one graph launches all its kernels."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graphs = []
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graphs.append(graph)
    return [graph.replay for graph in graphs]


def on_each(function, sets):
    return [lambda one=one: function(*one) for one in sets]


def form(function, way):
    """The function as it is ("eager"), or compiled ("compiled")."""
    if way == "eager":
        return function
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def indexer(way, n_rows, context):
    shape = f"{n_rows:2} rows, context {context}"
    sets = [ops.index_operands(n_rows, context, "cuda") for _ in range(n_sets(n_rows * context // ops.RATIO * 256))]
    function = form(ops.scores, way)
    values = function(*sets[0])
    n_wrong = ops.note(f"scores, {way}, {shape}", ops.scores_error(values, *sets[0]))
    n_wrong += ops.note(f"top-k, {way}, {shape}", ops.list_error(ops.top_k(values), values))
    alone = on_each(function, sets)
    both = on_each(lambda *one: ops.top_k(function(*one)), sets)
    measure(f"scores, {way}, {shape}", alone)
    measure(f"scores + top-512, {way}, {shape}", both)
    measure(f"scores, {way} graph, {shape}", as_graphs(alone))
    measure(f"scores + top-512, {way} graph, {shape}", as_graphs(both))
    if way == "eager":
        lists = on_each(ops.top_k, [(function(*one),) for one in sets])
        measure(f"top-512, eager graph, {shape}", as_graphs(lists))
    return n_wrong


def attention(way, n_rows):
    shape = f"{n_rows:2} rows, 64 heads x {ops.N_SLOTS}"
    sets = [ops.attention_operands(n_rows, "cuda") for _ in range(4)]
    function = form(ops.attention, way)
    n_wrong = ops.note(f"attention, {way}, {shape}", ops.attention_error(function(*sets[0]), *sets[0]))
    calls = on_each(function, sets)
    measure(f"attention, {way}, {shape}", calls)
    measure(f"attention, {way} graph, {shape}", as_graphs(calls))
    return n_wrong


def main():
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help="indexer, attention; both if none is named")
    parser.add_argument("--budget", type=float, default=30, help="seconds after which no further shape is compiled")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - {"indexer", "attention"}
    if unknown:
        parser.error(f"no section {sorted(unknown)[0]}")
    if not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 0
    sections = arguments.sections or ["indexer", "attention"]
    work = [(attention, (n,)) for n in ATTENTION_ROWS] if "attention" in sections else []
    work += [(indexer, shape) for shape in INDEX_SHAPES] if "indexer" in sections else []
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"{'':<52} {'least':>9} {'median':>9} {'90 %':>9} {'idle':>9} {'in a row':>9}   (microseconds)", flush=True)
    n_wrong = 0
    with torch.inference_mode():
        for function, shape in work:
            n_wrong += function("eager", *shape)
        for function, shape in work:
            if time.monotonic() - started > arguments.budget:
                print(f"left out, over the time: {function.__name__}, compiled, {shape}")
                continue
            n_wrong += function("compiled", *shape)
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
