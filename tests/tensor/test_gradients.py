"""The gradient table: every op, every kind, first and second order, and through torch.func."""

import functools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft import P
from weft.sharding import DeviceMesh, make_mesh

MESH = make_mesh({"a": 2, "b": 2})
KINDS = ("sum", "mean", "max", "min", "prod")


def on(x: torch.Tensor, *spec: object) -> torch.Tensor:
    return weft.shard(x, MESH, P(*spec))


def pending(x: torch.Tensor) -> torch.Tensor:
    """The same value as a sum that is pending over "a"."""
    return weft.shard(x, MESH, weft.NamedMapping(MESH, P(None, "b"), unreduced=["a"]))


MOVES = {
    "shard": lambda x: on(on(x, "a"), None, ("b", "a")),
    "shard from pending": lambda x: on(pending(x), "a", "b"),
    "all_gather": lambda x: weft.all_gather(on(x, "a", "b")),
    "all_gather one dim": lambda x: weft.all_gather(on(x, "a", "b"), axis=1),
    "broadcast": lambda x: weft.distributed_broadcast(on(x, "a", "b")),
    "broadcast plain": lambda x: weft.distributed_broadcast(x, MESH),
    "to_device": lambda x: weft.to_device(on(x, "a"), weft.CPU(3)),
    "to sharding": lambda x: weft.to_device(x, sharding=weft.NamedMapping(MESH, P("b"))),
    "cpu": lambda x: weft.cpu(on(x, "a")),
    "redistribute": lambda x: on(x, "a").redistribute(weft.NamedMapping(MESH, P(None, "b"))),
    "other mesh": lambda x: weft.shard(
        on(x, "a", "b"), DeviceMesh([weft.CPU(i) for i in (5, 6, 7)], (3,), ("z",)), P("z")
    ),
    "full_tensor": lambda x: on(x, "a", "b").full_tensor(),
    "all_reduce pending": lambda x: weft.all_reduce(pending(x)),
    "reduce_scatter pending": lambda x: weft.reduce_scatter(pending(x), 0),
}
COMBINATIONS = {
    "all_to_all": lambda x: weft.all_to_all(on(x, "a"), 1, 0),
    "all_to_all same dim": lambda x: weft.all_to_all(on(x, "a"), 0, 0),
    "all_to_all other dim": lambda x: weft.all_to_all(on(x, "a"), 0, 1),
    "all_to_all untiled": lambda x: weft.all_to_all(on(x.reshape(4, 2, 2), "a"), 1, 0, tiled=False),
    "all_to_all replicated": lambda x: weft.all_to_all(on(x), 1, 0),
    "ppermute": lambda x: weft.ppermute(on(x, "a", "b"), [(0, 1), (1, 2), (3, 0)]),
    **{
        f"all_reduce {kind}": functools.partial(lambda x, k: weft.all_reduce(on(x, "a", "b"), k, "a"), k=kind)
        for kind in KINDS
    },
    **{
        f"all_reduce all {kind}": functools.partial(lambda x, k: weft.all_reduce(on(x, ("b", "a")), k), k=kind)
        for kind in KINDS
    },
    **{
        f"all_reduce replicas {kind}": functools.partial(lambda x, k: weft.all_reduce(on(x, "a"), k, "b"), k=kind)
        for kind in KINDS
    },
    **{
        f"reduce_scatter {kind}": functools.partial(lambda x, k: weft.reduce_scatter(on(x, "a"), 0, k), k=kind)
        for kind in KINDS
    },
}


def values(*shape: int) -> torch.Tensor:
    made = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7), device="cpu")
    return made.to(torch.get_default_device())


def whole(op):
    """The op with a plain result, where its input is."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = op(x)
        return (y.full_tensor() if isinstance(y, weft.Tensor) else y).to(x.device)

    return run


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (1, 2)])
def test_movements(memory, name, shape) -> None:
    x = values(*shape).requires_grad_()
    assert gradcheck(whole(MOVES[name]), x)
    assert gradgradcheck(lambda x: whole(MOVES[name])(x) ** 3, x, fast_mode=True)


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("contiguous", [True, False])
def test_combinations(memory, name, contiguous) -> None:
    x = values(4, 4) if contiguous else values(8, 4)[::2].t()
    x.requires_grad_()
    assert gradcheck(whole(COMBINATIONS[name]), x)
    assert gradgradcheck(lambda x: whole(COMBINATIONS[name])(x) ** 2, x, fast_mode=True)


def test_ties_share_the_gradient_equally(memory) -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 3.0]], requires_grad=True)
    for kind, expected in (("max", [[0.5, 0.0], [0.5, 1.0]]), ("min", [[0.5, 1.0], [0.5, 0.0]])):
        (grad,) = torch.autograd.grad(weft.all_reduce(on(x, "a"), kind).sum().full_tensor(), x)
        assert grad.tolist() == expected


def test_products_are_right_with_zeros(memory) -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 0.0]], requires_grad=True)
    (grad,) = torch.autograd.grad(weft.all_reduce(on(x, "a"), "prod").sum().full_tensor(), x)
    assert grad.tolist() == [[3.0, 0.0], [0.0, 0.0]]


FUNCTIONS = {name: MOVES[name] for name in ("shard", "all_gather", "broadcast", "to_device", "all_reduce pending")} | {
    name: COMBINATIONS[name]
    for name in ("all_to_all", "ppermute", "all_reduce sum", "all_reduce max", "all_reduce prod", "reduce_scatter mean")
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_func(memory, name) -> None:
    """grad, vjp, jvp, jacrev, jacfwd and hessian of a sharded program are those of its plain meaning."""
    op = FUNCTIONS[name]
    x, v = values(4, 4), values(4, 4) + 1
    jacobian = torch.autograd.functional.jacobian(whole(op), x)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (op(x) ** 2).sum()

    def plain(value: torch.Tensor) -> torch.Tensor:
        return (value.full_tensor() if isinstance(value, weft.Tensor) else value).to(x.device)

    y = whole(op)(x)
    torch.testing.assert_close(plain(torch.func.grad(loss)(x)), 2 * torch.tensordot(y, jacobian, y.dim()))
    out, pull = torch.func.vjp(op, x)
    torch.testing.assert_close(plain(out), y)
    torch.testing.assert_close(plain(pull(torch.ones_like(out))[0]), jacobian.sum(tuple(range(y.dim()))))
    out, tangent = torch.func.jvp(op, (x,), (v,))
    torch.testing.assert_close(plain(tangent), torch.tensordot(jacobian, v, 2))
    torch.testing.assert_close(plain(torch.func.jacrev(op)(x)), jacobian)
    torch.testing.assert_close(
        plain(torch.func.hessian(loss)(x)), torch.autograd.functional.hessian(lambda x: plain(loss(x)), x)
    )


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # by torch, of plain tensors too
def test_functions_are_made_linear(memory) -> None:
    """What `torch.func.linearize` gives is computed of the tangents that it is given, not of those it was recorded with."""
    w, x, v = values(4, 2), values(3, 4), values(3, 4) + 1
    for function in (
        lambda x, w: x.sin() * 2,
        lambda x, w: (x @ w).tanh().sum(0),
        lambda x, w: torch.cat([x, x * x.mean()]).cumsum(0)[1:].exp(),
        lambda x, w: w[:1] * 2,
        lambda x, w: w.sum(),
    ):
        expected, push = torch.func.linearize(lambda x, f=function: f(x, w), x)
        found, ours = torch.func.linearize(lambda x, f=function: f(x, on(w, "a")), on(x, "a", "b"))
        torch.testing.assert_close(found.full_tensor(), expected)
        for tangent in (v, 2 * v):
            torch.testing.assert_close(ours(on(tangent, None, "a")).full_tensor(), push(tangent))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap(memory, name) -> None:
    op = FUNCTIONS[name]
    batch = values(3, 4, 4)
    expected = torch.stack([whole(op)(x) for x in batch])
    out = torch.func.vmap(op)(batch)
    torch.testing.assert_close(out.full_tensor().to(batch.device), expected)


@pytest.mark.parametrize("spec", [P(), P("a", "b"), P(None, ("b", "a"))])
def test_many_gradients_at_once(memory, spec: P) -> None:
    x, w, g = values(3, 4), values(4, 2), values(5, 3, 2)

    def outputs(x: torch.Tensor) -> torch.Tensor:
        return (
            torch.tanh(weft.shard(x, MESH, spec) @ weft.shard(w, MESH, P("b")))
            if isinstance(x, weft.Tensor)
            else torch.tanh(x @ w)
        )

    ours, plain = weft.shard(x, MESH, spec).requires_grad_(), x.clone().requires_grad_()
    found, expected = (torch.autograd.grad(outputs(each), each, g, is_grads_batched=True)[0] for each in (ours, plain))
    torch.testing.assert_close(found.full_tensor(), expected)
    found, expected = (torch.autograd.functional.jacobian(outputs, each, vectorize=True) for each in (ours, plain))
    torch.testing.assert_close(found.full_tensor(), expected)


def test_sharded_leaves_through_torch_func(memory) -> None:
    w = weft.shard(values(4, 6), MESH, P("a", "b"))
    x = weft.shard(values(2, 4), MESH, P(None, "a"))

    def loss(w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).pow(2).sum()

    expected = torch.func.grad(lambda w: torch.tanh(x.full_tensor() @ w).pow(2).sum())(w.full_tensor())
    torch.testing.assert_close(torch.func.grad(loss)(w).full_tensor(), expected)


def test_accumulating_keeps_the_layout(memory) -> None:
    w = weft.shard(values(4, 4), MESH, P(None, "b")).requires_grad_()
    x = weft.shard(values(8, 4), MESH, P("a"))
    for _ in range(2):
        (x @ w).sum().backward()
    assert w.grad.mapping.spec == P(None, "b")
    torch.testing.assert_close(w.grad.full_tensor(), 2 * x.full_tensor().sum(0)[:, None].expand(4, 4))


@pytest.mark.parametrize("turn", [lambda x: x.unsqueeze_(0), lambda x: x.unsqueeze_(-1), lambda x: x.squeeze_(0)])
@pytest.mark.parametrize("spec", [P(), P(None, "a"), P(None, "a", "b")], ids=str)
def test_a_leaf_that_has_another_shape_since_gets_what_fits_it(memory, spec: P, turn) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor | None:
        x.requires_grad_()
        y = x + x
        with torch.no_grad():
            turn(x)
        try:
            y.sum().backward()
        except RuntimeError:  # as torch refuses what does not spread to the leaf
            return None
        return x.grad

    whole = torch.ones(1, 2, 3)
    given, expected = gradient(weft.shard(whole.clone(), make_mesh({"a": 2, "b": 2}), spec)), gradient(whole.clone())
    assert (given is None) is (expected is None)
    if isinstance(given, weft.Tensor) and expected is not None:
        assert given.stride() == expected.stride()
        assert torch.equal(given.full_tensor(), expected)


def test_forward_mode_of_a_part(memory) -> None:
    """A tangent lies as its primal does, which may begin in the middle of another tensor."""
    w, x = values(4, 3), values(6, 4)
    row = weft.shard(x, MESH, P("a"))[1]

    def loss(v: torch.Tensor) -> torch.Tensor:
        return (v @ w).pow(3).sum()

    torch.testing.assert_close(torch.func.hessian(loss)(row).full_tensor(), torch.func.hessian(loss)(x[1]))


def test_recordings_of_sharded_and_plain_inputs_are_refused(memory) -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ on(w, "b")

    with pytest.raises(NotImplementedError, match=r"record aten\.mm\.default of .* shard all inputs before"):
        make_fx(product)(on(values(6, 4), "a"), values(4, 3))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # of torch's, of plain tensors too
def test_what_is_recorded_takes_what_goes_in(memory) -> None:
    """`make_fx` records ops on sharded tensors; those that a function closes over are constants of the graph, and its results are none."""
    x, w, v = values(6, 4), values(4, 3), values(4, 3) + 1

    def loss(w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(rows * 2 @ w).pow(2).mean()

    rows = x
    out, tangent = torch.func.jvp(loss, (w,), (v,))
    twice = make_fx(loss)(w)(2 * w)
    rows = on(x, "a")
    split = on(w, "b")
    value, linear = torch.func.linearize(loss, split)
    torch.testing.assert_close(value.full_tensor(), out)
    for scale in (1, 3):
        torch.testing.assert_close(linear(on(scale * v, "b")).full_tensor(), scale * tangent)
    for given, graph in ((on(2 * w, "b"), make_fx(loss)(split)), (2 * w, make_fx(loss)(w))):
        torch.testing.assert_close(graph(given).full_tensor(), twice)


BESIDE_PLAIN = {
    "a product": lambda x, w: x * w,
    "batch norm": lambda x, w: torch.nn.functional.batch_norm(x, None, None, None, w, True),
    "a linear layer": lambda x, w: torch.nn.functional.linear(x.view(2, 3, 4), w[None]),
    "tensors that are joined": lambda x, w: torch.cat([x, w[None]]),
    "lists": lambda x, w: torch._foreach_mul([x, x], [w, 2 * w])[0],
    "what is copied": lambda x, w: (x * 1).copy_(w),
    "sums of products": lambda x, w: torch.einsum("ij,j->i", x, w),
}


@pytest.mark.parametrize("spec", [P(), P("a"), P(None, "a"), P("b", "a")], ids=str)
@pytest.mark.parametrize("name", BESIDE_PLAIN)
def test_gradients_of_plain_tensors_are_plain(name: str, spec: P) -> None:
    function, x = BESIDE_PLAIN[name], values(6, 4)
    expected, *found = (values(4).requires_grad_() for _ in range(3))
    function(x, expected).square().sum().backward()
    for w in found:  # the second call finds what the first has left
        function(weft.shard(x, MESH, spec), w).square().sum().backward()
        assert type(w.grad) is torch.Tensor
        torch.testing.assert_close(w.grad, expected.grad)
