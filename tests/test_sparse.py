"""Sparse tensors on the device against the CPU: creation, conversion, products, sparse gradients."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.usefixtures("no_fallback"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]
F = torch.nn.functional

INDICES = torch.tensor([[0, 2, 0, 2], [1, 0, 1, 3]])
VALUES = torch.tensor([1.0, 2.0, 3.0, -4.0])


def matrix():
    return torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, 0.0, torch.nan, -3.0]])


def check(function):
    """`function` of a device gives the same sparse or dense tensor on both."""
    got, want = function("tpu"), function("cpu")
    assert got.device.type == "tpu"
    assert got.layout == want.layout
    if want.layout == torch.sparse_coo:
        assert got.is_coalesced() == want.is_coalesced()
    torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def coo(device, values=VALUES, sizes=(3, 4)):
    return torch.sparse_coo_tensor(INDICES.to(device), values.to(device), sizes)


def csr(device, values=VALUES[:3]):
    starts, columns = torch.tensor([0, 1, 1, 3]), torch.tensor([1, 0, 3])
    return torch.sparse_csr_tensor(starts.to(device), columns.to(device), values.to(device), (3, 4))


def test_creation_and_copies():
    check(coo)
    check(lambda device: coo("cpu").to(device))
    check(lambda device: coo(device, VALUES[:, None] * torch.ones(2), (3, 4, 2)))
    check(lambda device: coo(device).clone())
    check(lambda device: torch.zeros(2, 3, layout=torch.sparse_coo, device=device))
    check(csr)
    check(lambda device: csr("cpu").to(device))
    check(lambda device: csr(device).clone())
    with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
        torch.sparse_coo_tensor(INDICES.to("tpu"), VALUES.to("tpu"), (2, 4), check_invariants=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_to_sparse(dtype):
    dense = matrix().nan_to_num(5).to(dtype)
    check(lambda device: dense.to(device).to_sparse())
    check(lambda device: dense.to(device).to_sparse(1))
    check(lambda device: dense.to(device).to_sparse().to_dense())
    check(lambda device: torch.zeros(2, 3, dtype=dtype, device=device).to_sparse())
    check(lambda device: dense.to(device).to_sparse_csr())
    check(lambda device: dense.to(device).to_sparse_csr().to_dense())


def test_coalesce():
    check(lambda device: coo(device).coalesce())
    check(lambda device: coo(device).coalesce().indices())
    check(lambda device: coo(device, VALUES[:, None] * torch.ones(2), (3, 4, 2)).coalesce())
    check(lambda device: coo(device).to_dense())
    check(lambda device: coo(device).to_sparse_csr())
    empty = torch.zeros(0)
    check(
        lambda device: torch.sparse_coo_tensor(INDICES[:, :0].to(device), empty.to(device), (3, 4)).coalesce()
    )


def test_sums_and_factors():
    check(lambda device: coo(device).coalesce() + coo(device).coalesce())
    check(lambda device: (coo(device) + coo(device)).coalesce())
    check(lambda device: coo(device).add_(coo(device)).coalesce())
    check(lambda device: torch.ones(3, 4, device=device).add_(coo(device), alpha=-1))
    check(lambda device: torch.add(torch.ones(3, 4, device=device), coo(device), alpha=2))
    check(lambda device: coo(device) * 3)


@pytest.mark.parametrize("make", [coo, csr])
def test_products(make):
    dense = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    check(lambda device: torch.sparse.mm(make(device), dense.to(device)))
    check(lambda device: make(device) @ dense.to(device))
    base = torch.full((3, 5), 2.0)
    check(lambda device: torch.addmm(base.to(device), make(device), dense.to(device), beta=0.5, alpha=2))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.sparse.mm(make("tpu"), dense[:3].to("tpu"))
    other = coo if make is csr else csr
    with pytest.raises(NotImplementedError):
        torch.sparse.mm(make("tpu"), other("tpu"))


def test_gradients_of_a_product():
    def gradients(device):
        sparse = coo(device).coalesce().requires_grad_()
        dense = torch.ones(4, 2).to(device).requires_grad_()
        weight = torch.arange(6.0).reshape(3, 2).to(device)
        by_sparse, by_dense = torch.autograd.grad(torch.sparse.mm(sparse, dense), (sparse, dense), weight)
        return by_sparse.to_dense(), by_dense

    for k in (0, 1):
        check(lambda device, k=k: gradients(device)[k])


def test_sampled_addmm():
    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(8.0).reshape(2, 4)
    check(
        lambda device: torch.sparse.sampled_addmm(csr(device), x.to(device), y.to(device), beta=0.5, alpha=2)
    )


def test_gradients_of_sampled_addmm():
    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(8.0).reshape(2, 4)

    def gradients(device):
        inputs = csr(device).requires_grad_(), *(dense.to(device).requires_grad_() for dense in (x, y))
        result = torch.sparse.sampled_addmm(*inputs, beta=0.5, alpha=2)
        return torch.autograd.grad(result, inputs, torch.arange(12.0).reshape(3, 4).to(device))

    for k in range(3):
        check(lambda device, k=k: gradients(device)[k])


@pytest.mark.parametrize("make", [coo, csr])
def test_products_from_the_left(make):
    dense = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    check(lambda device: torch.mm(dense.to(device), make(device)))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_reduced_products(reduce):
    dense = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    check(lambda device: torch.sparse.mm(csr(device), dense.to(device), reduce))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_reduced_products(reduce):
    values = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))

    def gradients(device):
        sparse, dense = csr(device).requires_grad_(), values.to(device).requires_grad_()
        weight = torch.arange(15.0).reshape(3, 5).to(device)
        result = torch.sparse.mm(sparse, dense, reduce)
        return [grad.to_dense() for grad in torch.autograd.grad(result, (sparse, dense), weight)]

    for k in (0, 1):
        check(lambda device, k=k: gradients(device)[k])


@pytest.mark.parametrize("mode", ["embedding", "sum", "mean"])
def test_sparse_gradients_of_embeddings(mode):
    def step(device):
        weight = torch.arange(12.0).reshape(6, 2).to(device).requires_grad_()
        index = torch.tensor([[1, 4], [1, 0]]).to(device)
        if mode == "embedding":
            F.embedding(index, weight, sparse=True).square().sum().backward()
        else:
            F.embedding_bag(index, weight, mode=mode, sparse=True).square().sum().backward()
        return weight.grad

    assert step("tpu").layout == torch.sparse_coo
    check(lambda device: step(device).coalesce())


def test_training_with_sparse_gradients():
    def trained(device, make):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.arange(12.0).reshape(6, 2).to(device))
        optimizer = make([weight])
        for _ in range(2):
            optimizer.zero_grad()
            F.embedding(torch.tensor([1, 4, 1]).to(device), weight, sparse=True).square().sum().backward()
            optimizer.step()
        return weight.detach()

    check(lambda device: trained(device, lambda p: torch.optim.SGD(p, lr=0.1, foreach=False)))
    check(lambda device: trained(device, lambda p: torch.optim.SparseAdam(p, lr=0.1)))


@pytest.mark.parametrize("form", [torch.sparse.mm, torch.mm, torch.matmul])
def test_products_of_sparse_matrices(form):
    check(lambda device: form(coo(device), coo(device).t()).coalesce())
    check(
        lambda device: form(coo(device, VALUES * 0, (3, 4)), torch.eye(4).to(device).to_sparse()).coalesce()
    )
    check(lambda device: form(torch.zeros(2, 3).to(device).to_sparse(), coo(device)).coalesce())
    check(lambda device: form(csr(device), torch.eye(4).to(device).to_sparse_csr()).to_dense())
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        form(coo("tpu"), coo("tpu"))


def test_gradients_of_a_product_of_sparse_matrices():
    def gradients(device):
        left, right = coo(device).coalesce().requires_grad_(), coo(device).t().coalesce().requires_grad_()
        torch.sparse.sum(torch.sparse.mm(left, right)).backward()
        return torch.cat([left.grad.to_dense().flatten(), right.grad.to_dense().flatten()])

    check(gradients)
