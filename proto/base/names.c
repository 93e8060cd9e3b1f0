#include "proto/base/names.h"

#include <hvd/hvd.h>

static const struct {
    const char *name;
    uint32_t size;
} dtypes[HVD_DTYPE_COUNT] = {
    [HVD_UINT8] = {"uint8", 1},     [HVD_INT8] = {"int8", 1},
    [HVD_UINT16] = {"uint16", 2},   [HVD_INT16] = {"int16", 2},
    [HVD_INT32] = {"int32", 4},     [HVD_INT64] = {"int64", 8},
    [HVD_FLOAT16] = {"float16", 2}, [HVD_BFLOAT16] = {"bfloat16", 2},
    [HVD_FLOAT32] = {"float32", 4}, [HVD_FLOAT64] = {"float64", 8},
    [HVD_BOOL] = {"bool", 1},
};

static const char *const kinds[HVD_KIND_COUNT] = {
    [HVD_ALLREDUCE] = "allreduce",
    [HVD_ALLGATHER] = "allgather",
    [HVD_BROADCAST] = "broadcast",
    [HVD_ALLTOALL] = "alltoall",
    [HVD_REDUCESCATTER] = "reducescatter",
    [HVD_BARRIER] = "barrier",
    [HVD_JOIN] = "join",
};

static const char *const ops[HVD_REDUCE_OP_COUNT] = {
    [HVD_AVERAGE] = "average", [HVD_SUM] = "sum", [HVD_ADASUM] = "adasum",
    [HVD_MIN] = "min",         [HVD_MAX] = "max", [HVD_PRODUCT] = "product",
};

const char *hvi_dtype_name(uint32_t dtype)
{
    if (dtype >= HVD_DTYPE_COUNT || dtypes[dtype].name == 0)
        return "?";
    return dtypes[dtype].name;
}

uint32_t hvi_dtype_size(uint32_t dtype)
{
    return dtype < HVD_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *hvi_kind_name(uint32_t kind)
{
    if (kind >= HVD_KIND_COUNT || kinds[kind] == 0)
        return "?";
    return kinds[kind];
}

const char *hvi_reduce_op_name(uint32_t op)
{
    return op < HVD_REDUCE_OP_COUNT ? ops[op] : "?";
}
