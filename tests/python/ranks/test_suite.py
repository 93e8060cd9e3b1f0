"""The collectives as test suites written for Horovod check them: unittest classes that loop
over types and one to three dimensions of 17, and compare with what one process computes."""

import itertools
import os
import unittest
import warnings

import torch

import horovod.torch as hvd

INTS = [torch.int32, torch.int64]
FLOATS = [torch.float16, torch.float32, torch.float64]
SMALL = [torch.uint8, torch.int8, torch.int16]
DIMS = [1, 2, 3]


def cast(tensor, dtype):
    return tensor.to(dtype)


def draw(dim, dtype, low=-100, high=100):
    torch.manual_seed(1234)
    return cast(torch.empty([17] * dim, dtype=torch.float64).random_(low, high + 1), dtype)


def tolerance(dtype, size):
    if dtype in INTS or size <= 3:
        return 0
    return 1e-4 if size < 10 else 5e-4


class Case(unittest.TestCase):
    def setUp(self):
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        self.old = warnings.filters[:]
        warnings.simplefilter("ignore", DeprecationWarning)

    def tearDown(self):
        warnings.filters[:] = self.old
        # the job goes on, and nothing is left of the test
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), self.size)

    def close(self, a, b, threshold=0.0):
        self.assertEqual(a.shape, b.shape)
        gap = (a.double() - b.double()).abs().max().item() if a.numel() else 0
        self.assertLessEqual(gap, threshold * max(1.0, b.double().abs().max().item()
                                                  if b.numel() else 0))


class BasicsTest(Case):
    def test_environment_agrees(self):
        for function, name in ((hvd.rank, "RANK"), (hvd.size, "SIZE"),
                               (hvd.local_rank, "LOCAL_RANK"), (hvd.local_size, "LOCAL_SIZE"),
                               (hvd.cross_rank, "CROSS_RANK"), (hvd.cross_size, "CROSS_SIZE")):
            self.assertEqual(function(), int(os.environ["HOROVOD_" + name]))

    def test_built(self):
        self.assertTrue(hvd.gloo_built() or hvd.mpi_built())
        self.assertTrue(hvd.gloo_enabled() or hvd.mpi_enabled())
        for one in (hvd.mpi_built, hvd.gloo_built, hvd.ddl_built, hvd.ccl_built,
                    hvd.cuda_built, hvd.rocm_built, hvd.mpi_threads_supported,
                    hvd.is_homogeneous):
            self.assertIsInstance(one(), bool)
        self.assertIsInstance(hvd.nccl_built(), int)


class AllreduceTest(Case):
    def test_sum_and_average(self):
        for dtype, dim in itertools.product(INTS + FLOATS, DIMS):
            t = draw(dim, dtype)
            summed = hvd.allreduce(t, average=False)
            self.assertEqual(summed.dtype, dtype)
            self.close(summed, t * self.size, 1e-3 if dtype == torch.float16 else 0)
            self.close(hvd.allreduce(t, average=True), t,
                       1e-3 if dtype == torch.float16 else 1e-6)
            self.close(hvd.allreduce(t), hvd.allreduce(t, op=hvd.Average))

    def test_min_max_product(self):
        for dtype, dim in itertools.product(INTS + FLOATS, DIMS):
            each = [cast(torch.empty([17] * dim, dtype=torch.float64).random_(
                -2, 3, generator=torch.Generator().manual_seed(r)), dtype)
                for r in range(self.size)]
            stack = torch.stack(each).double()
            mine = each[self.rank]
            self.close(hvd.allreduce(mine, op=hvd.Min), stack.min(0).values)
            self.close(hvd.allreduce(mine, op=hvd.Max), stack.max(0).values)
            self.close(hvd.allreduce(mine, op=hvd.Product), stack.prod(0))

    def test_in_place(self):
        for dtype, dim in itertools.product(INTS + FLOATS, DIMS):
            t = draw(dim, dtype)
            want = t * self.size
            out = hvd.allreduce_(t, average=False)
            self.assertIs(out, t)
            self.close(t, want, 1e-3 if dtype == torch.float16 else 0)

    def test_scale_factors(self):
        for dtype, dim in itertools.product(INTS + FLOATS, DIMS):
            factor = 0.7139
            t = draw(dim, dtype)
            threshold = 2e-3 if dtype == torch.float16 else 1e-6
            if dtype.is_floating_point:
                pre = (t.double() * factor).to(dtype) * self.size
                post = (t.double() * self.size * factor).to(dtype)
            else:
                pre = (t.double() * factor).to(dtype) * self.size
                post = (t.double() * self.size * factor).to(dtype)
            self.close(hvd.allreduce(t, op=hvd.Sum, prescale_factor=factor), pre, threshold)
            self.close(hvd.allreduce(t, op=hvd.Sum, postscale_factor=factor), post, threshold)

    def test_async_fused(self):
        handles, wanted = [], []
        polled = False
        for dtype, dim in itertools.product(INTS + FLOATS, DIMS):
            t = draw(dim, dtype)
            handle = hvd.allreduce_async(t, average=False)
            polled = polled or not hvd.poll(handle)
            handles.append(handle)
            wanted.append(t * self.size)
        for handle, want in zip(handles, wanted):
            while not hvd.poll(handle):
                pass
            self.close(hvd.synchronize(handle), want, 2e-3 if want.dtype == torch.float16 else 0)

    def test_small_types_and_bfloat16(self):
        for dtype in SMALL:
            t = torch.ones(17, dtype=dtype)
            self.close(hvd.allreduce(t, op=hvd.Sum), t * self.size)
        t = torch.arange(17).to(torch.bfloat16)
        self.close(hvd.allreduce(t), t)

    def test_errors(self):
        if self.size == 1:
            self.skipTest("needs two ranks")
        dims = [17 + self.rank] * 3
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones(dims))
        dims = [17, 23 * 57] if self.rank % 2 == 0 else [23, 17 * 57]
        with self.assertRaises(RuntimeError):
            hvd.allreduce(torch.ones(dims))
        dtype = torch.int32 if self.rank % 2 == 0 else torch.float32
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones([17] * 3, dtype=dtype))
        with self.assertRaises(ValueError):
            hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)

    def test_duplicate_name(self):
        if self.size == 1:
            self.skipTest("needs two ranks")
        t = torch.ones([17] * 3)
        if self.rank == 0:
            handle = hvd.allreduce_async(t, name="duplicate_name", op=hvd.Sum)
            for again in (hvd.allreduce_async, hvd.allreduce):
                with self.assertRaises(ValueError):
                    again(t, name="duplicate_name", op=hvd.Sum)
            hvd.barrier()
        else:
            hvd.barrier()
            handle = hvd.allreduce_async(t, name="duplicate_name", op=hvd.Sum)
        self.close(hvd.synchronize(handle), t * self.size)
        # and the name is free again
        hvd.allreduce(t, name="duplicate_name")

    def test_gradient(self):
        for dtype, dim in itertools.product(FLOATS, DIMS):
            t = draw(dim, dtype).requires_grad_()
            hvd.allreduce(t, average=False).backward(torch.ones([17] * dim, dtype=dtype))
            self.close(t.grad, torch.full_like(t, self.size))
            t = draw(dim, dtype).requires_grad_()
            hvd.allreduce(t, average=True).backward(torch.ones([17] * dim, dtype=dtype))
            self.close(t.grad, torch.ones_like(t), 1e-3)

    def test_grouped(self):
        for dtype, dim in itertools.product(INTS + FLOATS, DIMS):
            ts = [draw(dim, dtype) + i for i in range(5)]
            for got, t in zip(hvd.grouped_allreduce(ts, average=False), ts):
                self.close(got, t * self.size, 2e-3 if dtype == torch.float16 else 0)
            wanted = [t.clone() for t in ts]
            for got, t in zip(hvd.grouped_allreduce_(ts, op=hvd.Average), wanted):
                self.close(got, t, 2e-3)
        mixed = [torch.ones(3), torch.ones(4, dtype=torch.float64),
                 torch.ones(2, 2, dtype=torch.int32), torch.ones(5, dtype=torch.float16)]
        for got, t in zip(hvd.grouped_allreduce(mixed, op=hvd.Sum), mixed):
            self.assertEqual(got.dtype, t.dtype)
            self.close(got, t * self.size)

    def test_grouped_gradient(self):
        ts = [draw(2, torch.float32).requires_grad_() for _ in range(5)]
        out = hvd.grouped_allreduce(ts, average=False)
        grad = torch.ones([17] * 2)
        for one in out:
            one.backward(grad, retain_graph=True)
        for t in ts:
            self.close(t.grad, grad * self.size)

    def test_requires_grad_and_leaves(self):
        w = torch.nn.Parameter(torch.full((3,), float(self.rank)))
        mean = sum(range(self.size)) / self.size
        hvd.allreduce_(w.data)
        self.close(w.data, torch.full((3,), mean), 1e-6)
        with torch.no_grad():
            hvd.broadcast_(w, 0)
        hvd.broadcast_(w, root_rank=0)
        self.assertTrue(w.requires_grad and w.is_leaf)
        hvd.allreduce_async_(w.grad if w.grad is not None else torch.zeros(3))
        hvd.barrier()


class AllgatherTest(Case):
    def test_same_and_different_sizes(self):
        for dtype, dim in itertools.product(SMALL + INTS + FLOATS, DIMS):
            t = torch.full([17] * dim, self.rank, dtype=dtype)
            out = hvd.allgather(t)
            self.assertEqual(list(out.shape), [17 * self.size] + [17] * (dim - 1))
            for r in range(self.size):
                self.assertTrue((out[r * 17:(r + 1) * 17] == r).all())
            rows = [17, 32, 81, 12, 15, 23, 22][: self.size]
            out = hvd.allgather(torch.full([rows[self.rank]] + [17] * (dim - 1), self.rank,
                                           dtype=dtype))
            self.assertEqual(out.shape[0], sum(rows))
            at = 0
            for r in range(self.size):
                self.assertTrue((out[at:at + rows[r]] == r).all())
                at += rows[r]

    def test_empty_and_bool(self):
        t = torch.ones((self.rank, 4), dtype=torch.bool)
        out = hvd.allgather(t)
        self.assertEqual(tuple(out.shape), (sum(range(self.size)), 4))
        self.assertEqual(tuple(hvd.allgather(torch.empty(0, 3)).shape), (0, 3))

    def test_errors(self):
        with self.assertRaises(ValueError):
            hvd.allgather(torch.tensor(1.0))
        if self.size == 1:
            self.skipTest("needs two ranks")
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.allgather(torch.ones(17, 10 * (self.rank + 1), 17))
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.allgather(torch.ones([17] * 3,
                                     dtype=torch.int32 if self.rank % 2 else torch.float32))

    def test_gradient(self):
        for dim in DIMS:
            rows = [3, 2, 7, 4][: self.size]
            t = torch.full([rows[self.rank]] + [17] * (dim - 1), float(self.rank),
                           requires_grad=True)
            grads = torch.cat([torch.full([rows[r]] + [17] * (dim - 1), float(r))
                               for r in range(self.size)])
            hvd.allgather(t).backward(grads)
            self.close(t.grad, torch.full_like(t, self.rank))

    def test_grouped(self):
        ts = [torch.full((2 + i, 3), self.rank, dtype=d)
              for i, d in enumerate((torch.float32, torch.int64, torch.float16))]
        for i, out in enumerate(hvd.grouped_allgather(ts)):
            self.assertEqual(tuple(out.shape), ((2 + i) * self.size, 3))
            self.assertEqual(out[-1, 0].item(), self.size - 1)


class BroadcastTest(Case):
    def test_values(self):
        for dtype, dim, root in itertools.product(SMALL + INTS + FLOATS, DIMS,
                                                  range(self.size)):
            t = torch.full([17] * dim, self.rank, dtype=dtype)
            want = torch.full([17] * dim, root, dtype=dtype)
            self.close(hvd.broadcast(t, root), want)
            self.assertTrue((t == self.rank).all())
            self.assertIs(hvd.broadcast_(t, root), t)
            self.close(t, want)

    def test_errors(self):
        with self.assertRaises(ValueError):
            hvd.broadcast(torch.ones(2), self.size)
        if self.size == 1:
            self.skipTest("needs two ranks")
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.broadcast(torch.ones([17 + self.rank] * 3), 0)
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.broadcast(torch.ones([17] * 3,
                                     dtype=torch.int32 if self.rank % 2 else torch.float32), 0)
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.broadcast(torch.ones([17] * 3), self.rank)

    def test_gradient(self):
        for dim, root in itertools.product(DIMS, range(self.size)):
            t = torch.ones([17] * dim, requires_grad=True)
            hvd.broadcast(t, root).backward(torch.ones([17] * dim))
            self.close(t.grad, torch.full([17] * dim, 1.0 if self.rank == root else 0.0), 1e-6)


class AlltoallTest(Case):
    def test_values(self):
        for dtype, dim in itertools.product(SMALL + INTS + FLOATS, DIMS):
            rows = [torch.full([r + 1], self.rank, dtype=dtype) for r in range(self.size)]
            t = torch.cat(rows)
            for _ in range(dim - 1):
                t = torch.stack([t, t], -1)
            splits = torch.tensor([r + 1 for r in range(self.size)], dtype=torch.int32)
            out, received = hvd.alltoall(t, splits)
            self.assertEqual(out.shape[0], self.size * (self.rank + 1))
            self.assertEqual(received.tolist(), [self.rank + 1] * self.size)
            self.assertEqual(received.dtype, torch.int32)
            for r in range(self.size):
                n = self.rank + 1
                self.assertTrue((out[r * n:(r + 1) * n] == r).all())
            even = hvd.alltoall(torch.full([self.size * 2] + [3] * (dim - 1), self.rank,
                                           dtype=dtype))
            self.assertIsInstance(even, torch.Tensor)
            self.assertEqual(even.reshape(self.size, -1)[:, 0].tolist(), list(range(self.size)))

    def test_zero_splits_and_one_sender(self):
        splits = torch.zeros(self.size, dtype=torch.int32)
        if self.rank == 0:
            splits.fill_(2)
        out, received = hvd.alltoall(torch.arange(2.0 * self.size), splits)
        self.assertEqual(out.tolist(), [2.0 * self.rank, 2.0 * self.rank + 1])
        self.assertEqual(received.tolist(), [2] + [0] * (self.size - 1))
        out, received = hvd.alltoall(torch.empty(0, 2), torch.zeros(self.size, dtype=torch.int64))
        self.assertEqual(tuple(out.shape), (0, 2))

    def test_errors(self):
        n = self.size
        bad = [
            torch.full((n,), 2, dtype=torch.int32),  # more than there is
            torch.tensor([-1] + [1] * (n - 1), dtype=torch.int32),
            torch.ones(n + 1, dtype=torch.int32),
            torch.ones(n, dtype=torch.float32),
        ]
        for splits in bad:
            with self.assertRaises(ValueError):
                hvd.alltoall(torch.ones(n), splits)
        with self.assertRaises(ValueError):
            hvd.alltoall(torch.tensor(1.0))
        if n == 1:
            self.skipTest("needs two ranks")
        with self.assertRaises(ValueError):
            hvd.alltoall(torch.ones(n + 1))
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.alltoall(torch.ones((n, 3) if self.rank == 0 else (n, 3, 2)))
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.alltoall(torch.ones(n, dtype=torch.int32 if self.rank else torch.float32))

    def test_gradient(self):
        t = torch.ones(self.size * (self.size + 1) // 2, 2, requires_grad=True)
        splits = torch.arange(1, self.size + 1, dtype=torch.int32)
        out, _ = hvd.alltoall(t, splits)
        out.backward(torch.full_like(out, float(self.rank)))
        want = torch.cat([torch.full((r + 1, 2), float(r)) for r in range(self.size)])
        self.close(t.grad, want)


class ReducescatterTest(Case):
    def share(self, t):
        n, more = divmod(t.shape[0], self.size)
        at = self.rank * n + min(self.rank, more)
        return t[at:at + n + (1 if self.rank < more else 0)]

    def test_values(self):
        for dtype, dim in itertools.product(INTS + FLOATS, DIMS):
            t = draw(dim, dtype)
            threshold = 2e-3 if dtype == torch.float16 else 1e-6
            self.close(hvd.reducescatter(t, op=hvd.Sum), self.share(t * self.size), threshold)
            self.close(hvd.reducescatter(t), self.share(t), threshold)
            for got in hvd.grouped_reducescatter([t, t], op=hvd.Sum):
                self.close(got, self.share(t * self.size), threshold)
        t = torch.ones(17, 2)
        self.close(hvd.reducescatter(t, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
                   self.share(t * self.size * 1.5))

    def test_errors(self):
        with self.assertRaises(ValueError):
            hvd.reducescatter(torch.tensor(1.0))
        if self.size == 1:
            self.skipTest("needs two ranks")
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.reducescatter(torch.ones([17 + self.rank] * 3))
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.reducescatter(torch.ones([17] * 3,
                                         dtype=torch.int32 if self.rank % 2 else torch.float32))

    def test_gradient(self):
        t = torch.ones(self.size * 4, 3, requires_grad=True)
        out = hvd.reducescatter(t, op=hvd.Sum)
        out.backward(torch.ones_like(out))
        self.close(t.grad, torch.full_like(t, self.size))


class HandlesTest(Case):
    def test_twice_dropped_unknown(self):
        handle = hvd.allreduce_async(torch.ones(2))
        self.assertEqual(hvd.synchronize(handle).tolist(), [1.0, 1.0])
        self.assertIsNone(hvd.synchronize(handle))
        for i in range(50):
            hvd.allreduce_async_(torch.ones(1000))
        hvd.barrier()
        with self.assertRaises(ValueError):
            hvd.poll(10 ** 9)

    def test_error_is_raised_once_and_name_is_free(self):
        if self.size == 1:
            self.skipTest("needs two ranks")
        handle = hvd.allreduce_async(torch.ones(2 + self.rank), name="fails")
        with self.assertRaises(hvd.HorovodInternalError):
            hvd.synchronize(handle)
        self.assertIsNone(hvd.synchronize(handle))
        self.assertEqual(hvd.allreduce(torch.ones(2), name="fails").tolist(), [1.0, 1.0])


class JoinTest(Case):
    def test_uneven_batches(self):
        for last in range(self.size):
            steps = 4 if self.rank == last else 1
            for step in range(steps):
                out = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="step.%d" % step)
                self.assertEqual(out[0].item(), self.size if step == 0 else 1)
            if self.rank == last:
                self.close(hvd.allreduce(torch.ones(2)), torch.full((2,), 1 / self.size), 1e-6)
            self.assertEqual(hvd.join(), last if self.size > 1 else 0)

    def test_gather_while_joined(self):
        if self.size == 1:
            self.skipTest("needs two ranks")
        if self.rank == 0:
            hvd.join()
        else:
            for call in (lambda: hvd.allgather(torch.ones(2)),
                         lambda: hvd.broadcast(torch.ones(2), 1),
                         lambda: hvd.alltoall(torch.ones(self.size)),
                         lambda: hvd.reducescatter(torch.ones(self.size))):
                with self.assertRaises(RuntimeError):
                    call()
            hvd.join()


class ProcessSetTest(Case):
    def test_evens_and_odds(self):
        if self.size == 1:
            with self.assertRaises(ValueError):
                hvd.add_process_set([0])  # all ranks are set 0 already
            self.skipTest("needs two ranks")
        evens = hvd.add_process_set(list(range(0, self.size, 2)))
        if self.size > 1:
            odds = hvd.add_process_set(hvd.ProcessSet(range(1, self.size, 2)))
            mine = evens if self.rank % 2 == 0 else odds
            with self.assertRaises(ValueError):
                hvd.add_process_set(list(range(0, self.size, 2)))
        else:
            odds, mine = None, evens
        self.assertTrue(mine.included())
        count = mine.size()
        self.assertEqual(mine.rank(), mine.ranks.index(self.rank))
        t = torch.ones(5, 2)
        self.close(hvd.allreduce(t, op=hvd.Sum, process_set=mine), t * count)
        self.assertEqual(hvd.allgather(torch.tensor([self.rank]), process_set=mine).tolist(),
                         mine.ranks)
        self.assertEqual(
            hvd.broadcast(torch.tensor([self.rank]), mine.ranks[-1], process_set=mine).item(),
            mine.ranks[-1])
        self.assertEqual(hvd.alltoall(torch.full((count,), self.rank), process_set=mine).tolist(),
                         mine.ranks)
        self.assertEqual(hvd.broadcast_object(self.rank, mine.ranks[0], process_set=mine),
                         mine.ranks[0])
        self.assertEqual(hvd.allgather_object(self.rank, process_set=mine), mine.ranks)
        hvd.barrier(process_set=mine)
        if odds is not None:
            other = odds if mine is evens else evens
            for call in (lambda: hvd.allreduce(t, process_set=other),
                         lambda: hvd.allgather(t, process_set=other),
                         lambda: hvd.broadcast(t, other.ranks[0], process_set=other),
                         lambda: hvd.broadcast(t, other.ranks[0], process_set=mine)):
                with self.assertRaises(ValueError):
                    call()
            self.assertTrue(hvd.remove_process_set(odds))
        hvd.barrier()
        self.assertTrue(hvd.remove_process_set(evens))
        self.assertFalse(hvd.remove_process_set(evens))
        self.assertFalse(hvd.remove_process_set(hvd.global_process_set))
