/**
 * A small multi-layer perceptron: 784 pixels, 128 hidden units with ReLU, 10 classes
 * with softmax and cross-entropy; SGD with momentum. Knows nothing of ranks.
 *
 * Gradients are *sums* over samples, so that a caller may add those of several ranks
 * and divide once by the size of the whole batch: the result does not depend on how
 * many ranks there are or on who had how many samples.
 */
#ifndef MNIST_MLP_H
#define MNIST_MLP_H

#include <stddef.h>
#include <stdint.h>

#include "data.h"

#define MLP_HIDDEN 128

/** The four tensors, one after another in one block of MLP_PARAMS floats. */
enum mlp_tensor { MLP_W1, MLP_B1, MLP_W2, MLP_B2, MLP_TENSORS };

struct mlp_slice {
    const char *name;
    size_t offset_elems, elem_count;
};
extern const struct mlp_slice mlp_slices[MLP_TENSORS];

#define MLP_PARAMS                                                                     \
    (MNIST_PIXELS * MLP_HIDDEN + MLP_HIDDEN + MLP_HIDDEN * MNIST_CLASSES +             \
     MNIST_CLASSES)

/** Room for the activations of up to `cap` samples. */
struct mlp_work {
    int32_t cap, count;
    float *input;   /* [cap][MNIST_PIXELS], 0 to 1 */
    uint8_t *label; /* [cap] */
    float *hidden;  /* [cap][MLP_HIDDEN], after ReLU */
    float *delta;   /* [cap][MLP_HIDDEN], gradient at the hidden layer */
    float *output;  /* [cap][MNIST_CLASSES], probabilities, then the gradient there */
};

/** 0, or -1: no memory. */
int mlp_work_init(struct mlp_work *w, int32_t cap);
void mlp_work_fini(struct mlp_work *w);

/** Random weights from seed (He), biases 0. params: [MLP_PARAMS]. */
void mlp_params_init(float *params, uint64_t seed);

/** Copy samples index[0..count) of set into w; count <= w->cap. */
void mlp_load(struct mlp_work *w, const struct mnist_set *set, const int32_t *index,
              int32_t count);

/** Forward pass. Adds to *loss_sum and *correct; leaves probabilities in w->output. */
void mlp_forward(struct mlp_work *w, const float *params, double *loss_sum,
                 double *correct);

/** Backward pass in two halves, so that the first half's gradients can travel while the
 *  second computes. grads: [MLP_PARAMS]; each half overwrites its own tensors. */
void mlp_backward_output(struct mlp_work *w, const float *params,
                         float *grads);                     /* W2, B2 */
void mlp_backward_hidden(struct mlp_work *w, float *grads); /* W1, B1 */

/** velocity = momentum * velocity + grad_scale * grads; params -= lr * velocity. */
void mlp_step(float *params, float *velocity, const float *grads, float grad_scale,
              float lr, float momentum);

/** Uniform 64-bit numbers (splitmix64); advances *state. */
uint64_t mlp_random(uint64_t *state);

#endif
