"""Values of every collective, against the same computed from all ranks' inputs here."""

import pytest
import torch

INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def tensor_of(rank, shape, dtype, salt=0):
    """The tensor that this rank contributes: small numbers, exact in every type."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    values = torch.randint(0, 4, shape, generator=generator)
    return values.to(dtype)


def all_of(hvd, shape, dtype, salt=0):
    return [tensor_of(r, shape, dtype, salt) for r in range(hvd.size())]


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    if a.dtype.is_floating_point:
        tol = TOLERANCE[a.dtype]
        assert torch.allclose(a.double(), b.double(), rtol=tol, atol=tol), (a, b)
    else:
        assert torch.equal(a, b), (a, b)


@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
def test_allreduce_sum_and_average(hvd, dtype):
    for shape in [(), (1,), (17,), (3, 4, 5), (1 << 15,)]:
        wide = torch.stack([t.double() for t in all_of(hvd, shape, dtype)]).sum(0)
        mine = tensor_of(hvd.rank(), shape, dtype)
        before = mine.clone()
        same(hvd.allreduce(mine, op=hvd.Sum), wide.to(dtype))
        expected = wide / hvd.size()
        if not dtype.is_floating_point:
            expected = expected.trunc()
        same(hvd.allreduce(mine), expected.to(dtype))
        assert torch.equal(mine, before)


@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
def test_allreduce_min_max_product(hvd, dtype):
    inputs = torch.stack([t.double() for t in all_of(hvd, (50,), dtype)])
    mine = tensor_of(hvd.rank(), (50,), dtype)
    same(hvd.allreduce(mine, op=hvd.Min), inputs.min(0)[0].to(dtype))
    same(hvd.allreduce(mine, op=hvd.Max), inputs.max(0)[0].to(dtype))
    same(hvd.allreduce(mine, op=hvd.Product), inputs.prod(0).to(dtype))


def test_bool(hvd):
    inputs = [(torch.arange(8) + r) % 3 == 0 for r in range(hvd.size())]
    mine = inputs[hvd.rank()]
    assert torch.equal(hvd.allreduce(mine, op=hvd.Max), torch.stack(inputs).any(0))
    assert torch.equal(hvd.allreduce(mine, op=hvd.Min), torch.stack(inputs).all(0))
    assert torch.equal(hvd.allgather(mine), torch.cat(inputs))
    assert torch.equal(hvd.broadcast(mine, 0), inputs[0])
    with pytest.raises(ValueError):
        hvd.allreduce(mine, op=hvd.Average)


def test_average_argument_and_op_exclude_each_other(hvd):
    x = torch.ones(2)
    with pytest.warns(DeprecationWarning):
        assert float(hvd.allreduce(x, average=False)[0]) == hvd.size()
    with pytest.raises(ValueError):
        hvd.allreduce(x, average=True, op=hvd.Sum)


def test_scale_factors(hvd):
    mine = tensor_of(hvd.rank(), (40,), torch.float32)
    total = torch.stack(all_of(hvd, (40,), torch.float32)).sum(0)
    same(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), total * 1.5)
    same(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.0), total * 0)
    same(hvd.allreduce_(mine.clone(), op=hvd.Average, postscale_factor=0.0), total * 0)
    whole = tensor_of(hvd.rank(), (40,), torch.int32)
    got = hvd.allreduce(whole, op=hvd.Sum, postscale_factor=2.0)
    same(got, torch.stack(all_of(hvd, (40,), torch.int32)).sum(0).to(torch.int32) * 2)


def test_allreduce_in_place(hvd):
    mine = tensor_of(hvd.rank(), (9, 2), torch.float32)
    total = torch.stack(all_of(hvd, (9, 2), torch.float32)).sum(0)
    result = hvd.allreduce_(mine, op=hvd.Sum)
    assert result is mine
    same(mine, total)
    leaf = torch.nn.Parameter(tensor_of(hvd.rank(), (9, 2), torch.float32))
    assert hvd.allreduce_(leaf, op=hvd.Sum) is leaf
    same(leaf.detach(), total)


def test_empty_tensors(hvd):
    assert hvd.allreduce(torch.zeros(0)).shape == (0,)
    assert hvd.allreduce_(torch.zeros(3, 0)).shape == (3, 0)
    assert hvd.broadcast(torch.zeros(0, 2), 0).shape == (0, 2)
    assert hvd.allgather(torch.zeros(0, 2)).shape == (0, 2)
    assert hvd.reducescatter(torch.zeros(0, 2)).shape == (0, 2)
    assert hvd.alltoall(torch.zeros(0, 2)).shape == (0, 2)
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_allgather([]) == []
    assert hvd.grouped_reducescatter([]) == []
    assert hvd.synchronize(hvd.grouped_allreduce_async([])) == []


def test_non_contiguous_tensors(hvd):
    base = tensor_of(hvd.rank(), (6, 8), torch.float32)
    total = torch.stack(all_of(hvd, (6, 8), torch.float32)).sum(0)
    same(hvd.allreduce(base.t(), op=hvd.Sum), total.t().contiguous())
    same(hvd.allreduce(base[:, ::2], op=hvd.Sum), total[:, ::2].contiguous())
    view = base.clone()
    hvd.allreduce_(view[:, 1::2], op=hvd.Sum)
    expected = base.clone()
    expected[:, 1::2] = total[:, 1::2]
    same(view, expected)
    image = tensor_of(hvd.rank(), (2, 3, 4, 5), torch.float32)
    image = image.contiguous(memory_format=torch.channels_last)
    want = torch.stack(all_of(hvd, (2, 3, 4, 5), torch.float32)).sum(0)
    hvd.allreduce_(image, op=hvd.Sum)
    assert torch.equal(image, want)
    assert image.is_contiguous(memory_format=torch.channels_last)
    turned = tensor_of(hvd.rank(), (4, 3), torch.float32).t()
    hvd.broadcast_(turned, 0)
    same(turned.contiguous(), tensor_of(0, (4, 3), torch.float32).t().contiguous())
    same(hvd.allgather(base.t()), torch.cat([t.t() for t in all_of(hvd, (6, 8), torch.float32)]))


@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
def test_allgather_of_different_first_dimensions(hvd, dtype):
    parts = [tensor_of(r, (2 * r + 1, 3), dtype) for r in range(hvd.size())]
    same(hvd.allgather(parts[hvd.rank()]), torch.cat(parts))
    # one rank has nothing
    parts = [tensor_of(r, (0 if r == 0 else 5, 2), dtype) for r in range(hvd.size())]
    same(hvd.allgather(parts[hvd.rank()]), torch.cat(parts))


def test_big_allgather_outlives_its_handle(hvd):
    kept = []
    for i in range(4):
        mine = torch.full((50000,), float(hvd.rank() + 10 * i))
        kept.append(hvd.allgather(mine))
    for i, got in enumerate(kept):
        for r in range(hvd.size()):
            part = got[r * 50000 : (r + 1) * 50000]
            assert float(part.min()) == float(part.max()) == r + 10 * i
    view = kept[0][1:10]
    del kept
    assert float(view.sum()) == 0.0
    view.add_(1)
    assert float(view.sum()) == 9.0


@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
def test_broadcast(hvd, dtype):
    for root in range(hvd.size()):
        mine = tensor_of(hvd.rank(), (4, 4), dtype, salt=root)
        want = tensor_of(root, (4, 4), dtype, salt=root)
        same(hvd.broadcast(mine, root), want)
        hvd.broadcast_(mine, root)
        same(mine, want)


@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
def test_alltoall(hvd, dtype):
    n, me = hvd.size(), hvd.rank()
    inputs = [tensor_of(r, (2 * n, 3), dtype) for r in range(n)]
    got = hvd.alltoall(inputs[me])
    same(got, torch.cat([t[2 * me : 2 * me + 2] for t in inputs]))
    # rank r sends s + 1 rows to rank s
    rows = n * (n + 1) // 2
    inputs = [tensor_of(r, (rows, 2), dtype, salt=1) for r in range(n)]
    splits = torch.tensor([s + 1 for s in range(n)], dtype=torch.int32)
    got, received = hvd.alltoall(inputs[me], splits)
    first = me * (me + 1) // 2
    same(got, torch.cat([t[first : first + me + 1] for t in inputs]))
    assert received.dtype == torch.int32 and received.tolist() == [me + 1] * n


def test_alltoall_where_some_send_nothing(hvd):
    n, me = hvd.size(), hvd.rank()
    splits = torch.zeros(n, dtype=torch.int32)
    splits[0] = 1
    got, received = hvd.alltoall(torch.full((1, 2), float(me)), splits)
    if me == 0:
        assert got[:, 0].tolist() == [float(r) for r in range(n)]
        assert received.tolist() == [1] * n
    else:
        assert got.shape == (0, 2) and received.tolist() == [0] * n


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64] + FLOATS, ids=str)
def test_reducescatter(hvd, dtype):
    n, me = hvd.size(), hvd.rank()
    for rows in (n, 2 * n + 1, 1):
        inputs = torch.stack([t.double() for t in all_of(hvd, (rows, 3), dtype)])
        total = inputs.sum(0).to(dtype)
        each, more = divmod(rows, n)
        counts = [each + (r < more) for r in range(n)]
        first = sum(counts[:me])
        mine = tensor_of(me, (rows, 3), dtype)
        same(hvd.reducescatter(mine, op=hvd.Sum), total[first : first + counts[me]])
    got = hvd.reducescatter(torch.full((n, 2), float(me)), prescale_factor=2.0)
    same(got, torch.full((1, 2), float(n - 1)))


def test_grouped_collectives(hvd):
    n, me = hvd.size(), hvd.rank()
    shapes = [(3,), (2, 2), (), (100,)]
    mine = [tensor_of(me, s, torch.float32, i) for i, s in enumerate(shapes)]
    totals = [torch.stack(all_of(hvd, s, torch.float32, i)).sum(0) for i, s in enumerate(shapes)]
    for got, want in zip(hvd.grouped_allreduce(mine, op=hvd.Sum), totals):
        same(got, want)
    for got, want in zip(hvd.grouped_allreduce(mine), totals):
        same(got, want / n)
    inplace = [t.clone() for t in mine]
    result = hvd.grouped_allreduce_(inplace, op=hvd.Sum, name="g")
    assert all(a is b for a, b in zip(result, inplace))
    for got, want in zip(inplace, totals):
        same(got, want)
    rows = [tensor_of(me, (me + 1, 2), torch.int64, i) for i in range(3)]
    for i, got in enumerate(hvd.grouped_allgather(rows)):
        same(got, torch.cat([tensor_of(r, (r + 1, 2), torch.int64, i) for r in range(n)]))
    parts = hvd.grouped_reducescatter([torch.ones(n, 2), torch.ones(2 * n)], op=hvd.Sum)
    same(parts[0], torch.full((1, 2), float(n)))
    same(parts[1], torch.full((2,), float(n)))
    mixed = [torch.ones(2), torch.ones(2, dtype=torch.int64)]
    got = hvd.grouped_allreduce(mixed, op=hvd.Sum)
    assert [t.dtype for t in got] == [torch.float32, torch.int64]


def test_many_at_once_in_another_order_on_every_rank(hvd):
    count = 60
    order = [(i * 7 + hvd.rank() * 13) % count for i in range(count)]
    handles = {
        i: hvd.allreduce_async(torch.full((i + 1,), float(i + hvd.rank())), op=hvd.Sum,
                               name="many.%d" % i)
        for i in order
    }
    extra = sum(range(hvd.size()))
    for i in range(count):
        assert torch.equal(hvd.synchronize(handles[i]),
                           torch.full((i + 1,), float(i * hvd.size() + extra)))


def test_poll_and_synchronize(hvd):
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="poll")
    while not hvd.poll(handle):
        pass
    assert hvd.poll(handle)
    assert hvd.synchronize(handle).tolist() == [float(hvd.size())] * 3
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError):
        hvd.poll(handle)


def test_tensors_may_be_dropped_while_in_flight(hvd):
    handles = [
        hvd.allreduce_async_(torch.full((4000,), float(i)), op=hvd.Sum, name="drop.%d" % i)
        for i in range(50)
    ]
    torch.zeros(50, 4000).fill_(9.0)
    for i, handle in enumerate(handles):
        assert float(hvd.synchronize(handle)[17]) == i * hvd.size()


def test_same_name_in_different_classes(hvd):
    x = torch.ones(2)
    handles = [hvd.allreduce_async(x, op=hvd.Sum, name="one"), hvd.allgather_async(x, name="one"),
               hvd.broadcast_async(x, 0, name="one")]
    assert [hvd.synchronize(h).numel() for h in handles] == [2, 2 * hvd.size(), 2]


def test_compression(hvd):
    mine = tensor_of(hvd.rank(), (30,), torch.float32) / 3
    total = torch.stack(all_of(hvd, (30,), torch.float32)).sum(0) / 3
    for compression, tolerance in ((hvd.Compression.fp16, 4e-3), (hvd.Compression.bf16, 4e-2),
                                   (hvd.Compression.none, 1e-6)):
        got = hvd.allreduce(mine, op=hvd.Sum, compression=compression)
        assert got.dtype == torch.float32
        assert torch.allclose(got, total, rtol=tolerance, atol=tolerance)
        got = hvd.grouped_allreduce([mine], op=hvd.Sum, compression=compression)[0]
        assert got.dtype == torch.float32
        assert torch.allclose(got, total, rtol=tolerance, atol=tolerance)
    compressed, ctx = hvd.Compression.fp16.compress(mine)
    assert compressed.dtype == torch.float16
    assert hvd.Compression.fp16.decompress(compressed, ctx).dtype == torch.float32
    whole = torch.arange(3)
    assert hvd.Compression.fp16.compress(whole)[0].dtype == torch.int64


def test_sparse_allreduce(hvd):
    n, me = hvd.size(), hvd.rank()
    indices = torch.tensor([[0, me + 1]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(2, 3), (n + 2, 3))
    dense = sum(
        torch.sparse_coo_tensor(torch.tensor([[0, r + 1]]), torch.ones(2, 3), (n + 2, 3)).to_dense()
        for r in range(n)
    )
    got = hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Sum)()
    assert torch.equal(got.to_dense(), dense)
    got = hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Average)()
    assert torch.allclose(got.to_dense(), dense / n)
    with pytest.raises(NotImplementedError):
        hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Max)


def test_adasum(hvd):
    n = hvd.size()
    if n & (n - 1):
        with pytest.raises(NotImplementedError):
            hvd.allreduce(torch.ones(3), op=hvd.Adasum)
        return
    # equal vectors: the combination is the vector itself; orthogonal ones: their sum
    same_everywhere = torch.tensor([3.0, 4.0])
    assert torch.allclose(hvd.allreduce(same_everywhere, op=hvd.Adasum), same_everywhere)
    mine = torch.zeros(n)
    mine[hvd.rank()] = 1.0
    assert torch.allclose(hvd.allreduce(mine, op=hvd.Adasum), torch.ones(n))


def test_join(hvd):
    n, me = hvd.size(), hvd.rank()
    # rank r has r + 1 batches; a joined rank counts as zero, and Average divides by all
    for i in range(me + 1):
        got = hvd.allreduce(torch.ones(2), name="batch.%d" % i)
        assert torch.allclose(got, torch.full((2,), (n - i) / n))
    last = hvd.join()
    assert last == (n - 1)
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == n


def test_barrier(hvd):
    for _ in range(3):
        hvd.barrier()


def test_facts(hvd):
    import os

    assert hvd.is_initialized()
    assert hvd.rank() == int(os.environ["HOROVOD_RANK"])
    assert hvd.size() == int(os.environ["HOROVOD_SIZE"])
    assert hvd.local_rank() == int(os.environ["HOROVOD_LOCAL_RANK"])
    assert hvd.local_size() == int(os.environ["HOROVOD_LOCAL_SIZE"])
    assert hvd.cross_rank() == 0 and hvd.cross_size() == 1
    assert hvd.is_homogeneous() is True
    assert hvd.mpi_built() is False and hvd.mpi_enabled() is False
    assert hvd.gloo_built() and hvd.gloo_enabled()
    assert not hvd.ddl_built() and not hvd.ccl_built() and not hvd.rocm_built()
    assert hvd.nccl_built() >= 21800 and isinstance(hvd.cuda_built(), bool)
    assert hvd.mpi_threads_supported() is False
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)


def test_results_are_bit_equal_on_all_ranks_and_in_two_runs(hvd):
    generator = torch.Generator().manual_seed(hvd.rank())
    mine = torch.randn(30001, generator=generator)
    first = hvd.allreduce(mine)
    for _ in range(3):
        noise = [hvd.allreduce_async(torch.randn(1000), name="noise.%d" % i) for i in range(5)]
        again = hvd.allreduce(mine, name="again")
        for handle in noise:
            hvd.synchronize(handle)
        assert torch.equal(first, again)
    everyone = hvd.allgather(first.view(1, -1))
    assert all(torch.equal(everyone[0], row) for row in everyone)
