"""Types of horovod.torch."""

import os
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
    overload,
)

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.common.process_sets import ProcessSet as ProcessSet
from horovod.common.util import check_extension as check_extension
from horovod.torch import compression as compression
from horovod.torch import elastic as elastic
from horovod.torch import functions as functions
from horovod.torch import mpi_ops as mpi_ops
from horovod.torch import optimizer as optimizer
from horovod.torch import sync_batch_norm as sync_batch_norm
from horovod.torch.compression import Compression as Compression
from horovod.torch.compression import Compressor

_T = TypeVar("_T")
_Handle = int

Average: int
Sum: int
Adasum: int
Min: int
Max: int
Product: int
global_process_set: ProcessSet

def init(
    comm: Optional[Any] = ..., process_sets: Union[Sequence[ProcessSet], str, None] = ...
) -> None: ...
def shutdown(*args: Any, **kwargs: Any) -> None: ...
def is_initialized() -> bool: ...
def start_timeline(file_path: Union[str, os.PathLike[str]], mark_cycles: bool = ...) -> None: ...
def stop_timeline() -> None: ...
def size() -> int: ...
def local_size() -> int: ...
def cross_size() -> int: ...
def rank() -> int: ...
def local_rank() -> int: ...
def cross_rank() -> int: ...
def is_homogeneous() -> bool: ...
def mpi_threads_supported() -> bool: ...
def mpi_enabled() -> bool: ...
def mpi_built() -> bool: ...
def gloo_enabled() -> bool: ...
def gloo_built() -> bool: ...
def nccl_built() -> int: ...
def ddl_built() -> bool: ...
def ccl_built() -> bool: ...
def cuda_built() -> bool: ...
def rocm_built() -> bool: ...
def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet: ...
def remove_process_set(process_set: ProcessSet) -> bool: ...
def exact_gradients(enabled: bool = ...) -> bool: ...
def allreduce_async(
    tensor: Tensor,
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> _Handle: ...
def allreduce(
    tensor: Tensor,
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    compression: Type[Compressor] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> Tensor: ...
def allreduce_async_(
    tensor: Tensor,
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> _Handle: ...
def allreduce_(
    tensor: Tensor,
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> Tensor: ...
def grouped_allreduce_async(
    tensors: Iterable[Tensor],
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> _Handle: ...
def grouped_allreduce(
    tensors: Iterable[Tensor],
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    compression: Type[Compressor] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> List[Tensor]: ...
def grouped_allreduce_async_(
    tensors: Iterable[Tensor],
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> _Handle: ...
def grouped_allreduce_(
    tensors: Iterable[Tensor],
    average: Optional[bool] = ...,
    name: Optional[str] = ...,
    op: Optional[int] = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> List[Tensor]: ...
def sparse_allreduce_async(
    tensor: Tensor, name: Optional[str], op: int, process_set: ProcessSet = ...
) -> Callable[[], Tensor]: ...
def allgather_async(
    tensor: Tensor, name: Optional[str] = ..., process_set: ProcessSet = ...
) -> _Handle: ...
def allgather(
    tensor: Tensor, name: Optional[str] = ..., process_set: ProcessSet = ...
) -> Tensor: ...
def grouped_allgather_async(
    tensors: Iterable[Tensor], name: Optional[str] = ..., process_set: ProcessSet = ...
) -> _Handle: ...
def grouped_allgather(
    tensors: Iterable[Tensor], name: Optional[str] = ..., process_set: ProcessSet = ...
) -> List[Tensor]: ...
def broadcast_async(
    tensor: Tensor, root_rank: int, name: Optional[str] = ..., process_set: ProcessSet = ...
) -> _Handle: ...
def broadcast(
    tensor: Tensor, root_rank: int, name: Optional[str] = ..., process_set: ProcessSet = ...
) -> Tensor: ...
def broadcast_async_(
    tensor: Tensor, root_rank: int, name: Optional[str] = ..., process_set: ProcessSet = ...
) -> _Handle: ...
def broadcast_(
    tensor: Tensor, root_rank: int, name: Optional[str] = ..., process_set: ProcessSet = ...
) -> Tensor: ...
def alltoall_async(
    tensor: Tensor,
    splits: Union[Tensor, Sequence[int], None] = ...,
    name: Optional[str] = ...,
    process_set: ProcessSet = ...,
) -> _Handle: ...
@overload
def alltoall(
    tensor: Tensor, splits: None = ..., name: Optional[str] = ..., process_set: ProcessSet = ...
) -> Tensor: ...
@overload
def alltoall(
    tensor: Tensor,
    splits: Union[Tensor, Sequence[int]],
    name: Optional[str] = ...,
    process_set: ProcessSet = ...,
) -> Tuple[Tensor, Tensor]: ...
def reducescatter_async(
    tensor: Tensor,
    name: Optional[str] = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> _Handle: ...
def reducescatter(
    tensor: Tensor,
    name: Optional[str] = ...,
    compression: Type[Compressor] = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> Tensor: ...
def grouped_reducescatter_async(
    tensors: Iterable[Tensor],
    name: Optional[str] = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> _Handle: ...
def grouped_reducescatter(
    tensors: Iterable[Tensor],
    name: Optional[str] = ...,
    compression: Type[Compressor] = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> List[Tensor]: ...
def join(device: int = ...) -> int: ...
def barrier(process_set: ProcessSet = ...) -> None: ...
def poll(handle: _Handle) -> bool: ...
def synchronize(handle: _Handle) -> Any: ...
def broadcast_parameters(
    params: Union[Dict[str, Any], Iterable[Any]], root_rank: int
) -> None: ...
def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, model: Optional[torch.nn.Module] = ...
) -> None: ...
def broadcast_object(
    obj: _T, root_rank: int = ..., name: Optional[str] = ..., process_set: ProcessSet = ...
) -> _T: ...
def allgather_object(
    obj: _T, name: Optional[str] = ..., process_set: ProcessSet = ...
) -> List[_T]: ...

# Any: no type is both the optimizer's own, which `optimizer = DistributedOptimizer(optimizer)`
# wants, and one with synchronize()
def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, Tensor]]] = ...,
    compression: Type[Compressor] = ...,
    backward_passes_per_step: int = ...,
    op: int = ...,
    gradient_predivide_factor: float = ...,
    num_groups: int = ...,
    groups: Union[int, List[List[Tensor]], None] = ...,
    sparse_as_dense: bool = ...,
    process_set: ProcessSet = ...,
) -> Any: ...

class SyncBatchNorm(_BatchNorm): ...
