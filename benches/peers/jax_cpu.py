"""JAX jitted on its own XLA CPU: the matrix product and the MLP's training step. Other cases print nothing."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp


def matmul() -> Callable[[], jax.Array]:
    a, b = (jax.random.normal(jax.random.key(seed), (2048, 2048)) for seed in (0, 1))
    product = jax.jit(jnp.matmul)
    return lambda: product(a, b)


def mlp() -> Callable[[], jax.Array]:
    """784-1024-1024-10, batch 64, AdamW with PyTorch's defaults."""
    sizes = [784, 1024, 1024, 10]
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    layers = [
        (jax.random.normal(key, (inputs, outputs)) / inputs**0.5, jnp.zeros(outputs))
        for key, inputs, outputs in zip(keys, sizes, sizes[1:], strict=False)
    ]
    x = jax.random.normal(jax.random.key(1), (64, 784))
    y = jax.random.randint(jax.random.key(2), (64,), 0, 10)

    def loss(layers: list) -> jax.Array:
        h = x
        for weight, bias in layers[:-1]:
            h = jax.nn.relu(h @ weight + bias)
        weight, bias = layers[-1]
        scores = jax.nn.log_softmax(h @ weight + bias)
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()

    @jax.jit
    def step(layers: list, first: list, second: list, count: jax.Array) -> tuple:
        value, gradients = jax.value_and_grad(loss)(layers)
        count = count + 1
        tree = jax.tree.map
        first = tree(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = tree(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)

        def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            scaled = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
            return p * (1 - 1e-5 * 0.01) - 1e-5 * scaled

        return value, tree(update, layers, first, second), first, second, count

    zeros = jax.tree.map(jnp.zeros_like, layers)
    state = [layers, zeros, zeros, jnp.zeros(())]

    def run() -> jax.Array:
        value, *state[:] = step(*state)
        return value

    return run


CASES = {"matmul 2048": (matmul, 4), "mlp step": (mlp, 8)}


def seconds(run: Callable[[], jax.Array], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        result = run()
    result.block_until_ready()
    return (time.perf_counter() - start) / times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.case not in CASES:
        return 0
    make, repeat = CASES[options.case]
    run = make()
    for _ in range(3):
        run().block_until_ready()
    own = statistics.median(seconds(run, repeat) for _ in range(options.rounds))
    row = {"version": f"jax {jax.__version__}", "case": options.case, "threads": None}
    print(json.dumps({**row, "seconds": own, "eager_seconds": None, "ratio": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
