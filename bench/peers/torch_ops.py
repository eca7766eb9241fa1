"""The indexer and sparse attention of a decode step as one writes them in PyTorch, and checks of their results.

Operands have the shapes and the distribution of those of bench/gpu_bench.c and bench/peers/peers.c: BF16, about normal.
"""

import torch

N_HEADS, INDEX_DIM, HEAD_DIM, N_SLOTS, TOP_K = 64, 128, 512, 640, 512
POOL_ROWS, WINDOW, RATIO = 16512, 128, 4


def scores(q, weights, keys):
    """[rows, 64, 128], F32 [rows, 64], [rows, keys, 128] to F32 [rows, keys]."""
    products = torch.bmm(q, keys.transpose(1, 2))
    return (products.relu().float() * weights.unsqueeze(-1)).sum(1)


def top_k(values):
    return torch.topk(values, TOP_K, dim=-1).indices


def attention(q, pool, indices, sinks):
    """[rows, 64, 512], [rows, pool, 512], [rows, 640], F32 [64] to [rows, 64, 512]."""
    n_rows = q.shape[0]
    rows = pool[torch.arange(n_rows, device=pool.device).unsqueeze(1), indices]
    logits = torch.bmm(q, rows.transpose(1, 2)).float() * HEAD_DIM**-0.5
    sink = sinks.view(1, N_HEADS, 1).expand(n_rows, N_HEADS, 1)
    weights = torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1]
    return torch.bmm(weights.to(q.dtype), rows)


def normal(shape, device, dtype):
    return torch.randn(shape, device=device, dtype=torch.float32).to(torch.bfloat16).to(dtype)


def index_operands(n_rows, context, device, dtype=torch.bfloat16):
    weights = torch.randn((n_rows, N_HEADS), device=device) * (INDEX_DIM * N_HEADS) ** -0.5
    return (
        normal((n_rows, N_HEADS, INDEX_DIM), device, dtype),
        weights,
        normal((n_rows, context // RATIO, INDEX_DIM), device, dtype),
    )


def attention_operands(n_rows, device, dtype=torch.bfloat16):
    window = torch.arange(WINDOW, device=device).expand(n_rows, WINDOW)
    chosen = torch.randint(WINDOW, POOL_ROWS, (n_rows, N_SLOTS - WINDOW), device=device)
    return (
        normal((n_rows, N_HEADS, HEAD_DIM), device, dtype),
        normal((n_rows, POOL_ROWS, HEAD_DIM), device, dtype),
        torch.cat([window, chosen], 1),
        torch.randn((N_HEADS,), device=device),
    )


def scores_error(result, q, weights, keys):
    """Largest error of the first 2,048 keys of the first row, over what rounding products to BF16 can make of it."""
    n = min(2048, keys.shape[1])
    products = (q[0].double() @ keys[0, :n].double().T).relu() * weights[0].double().unsqueeze(-1)
    allowed = products.abs().sum(0) * 2**-8 + 1e-5
    return ((result[0, :n].double() - products.sum(0)).abs() / allowed).max().item()


def list_error(indices, values):
    """1.5 if a list is not TOP_K different keys, all of them at least as good as the last of the exact list."""
    chosen = values.gather(-1, indices)
    worst = torch.sort(values, -1, descending=True).values[:, TOP_K - 1]
    is_unique = all(row.unique().numel() == TOP_K for row in indices)
    return 0.0 if is_unique and bool((chosen.amin(-1) >= worst).all()) else 1.5


def attention_error(result, q, pool, indices, sinks):
    """Largest error of the first row, over what rounding logits, weights and outputs to BF16 can make of it."""
    rows = pool[0, indices[0]].double()
    logits = torch.cat([q[0].double() @ rows.T * HEAD_DIM**-0.5, sinks.double().unsqueeze(-1)], -1)
    weights = torch.softmax(logits, -1)[:, :-1]
    exact = weights @ rows
    allowed = exact.abs() * 2**-8 + (weights @ rows.abs()) * 2**-7 + 1e-5
    return ((result[0].double() - exact).abs() / allowed).max().item()


def note(name, error):
    """A result that is off by more than allowed is shown; the number of such results is returned."""
    if error <= 1:
        return 0
    print(f"WRONG RESULT of {name}: {error:.2f} times the error allowed")
    return 1
