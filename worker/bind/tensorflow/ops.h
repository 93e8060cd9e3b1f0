/** ops.h - the kernels of ops.c and TensorFlow's C API as register.c has found it. */
#ifndef HVD_TF_OPS_H
#define HVD_TF_OPS_H

#include "tf_capi.h"

#define TF_EXPORT __attribute__((visibility("default")))

enum { TEXT_SIZE = 1024 };

extern struct tf_capi tf;

/* Start: tensors in host memory, and in that of the kernel's GPU. */
tf_create_fn hvi_tf_start_create, hvi_tf_start_over_create, hvi_tf_start_splits_create;
tf_compute_fn hvi_tf_start, hvi_tf_start_gpu;
tf_delete_fn hvi_tf_start_delete;

/* Wait, of both kinds. */
tf_compute_fn hvi_tf_wait, hvi_tf_wait_gpu, hvi_tf_wait_splits, hvi_tf_wait_splits_gpu;

tf_create_fn hvi_tf_fact_create;
tf_compute_fn hvi_tf_fact;
tf_delete_fn hvi_tf_fact_delete;

#endif
