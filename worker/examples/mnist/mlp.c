#include "mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define W1_ELEMS ((size_t)MNIST_PIXELS * MLP_HIDDEN)
#define W2_ELEMS ((size_t)MLP_HIDDEN * MNIST_CLASSES)

const struct mlp_slice mlp_slices[MLP_TENSORS] = {
    [MLP_W1] = {"w1", 0, W1_ELEMS},
    [MLP_B1] = {"b1", W1_ELEMS, MLP_HIDDEN},
    [MLP_W2] = {"w2", W1_ELEMS + MLP_HIDDEN, W2_ELEMS},
    [MLP_B2] = {"b2", W1_ELEMS + MLP_HIDDEN + W2_ELEMS, MNIST_CLASSES},
};

int mlp_work_init(struct mlp_work *w, int32_t cap)
{
    size_t n = cap > 0 ? (size_t)cap : 1;

    memset(w, 0, sizeof *w);
    w->cap = cap;
    w->input = calloc(n * MNIST_PIXELS, sizeof(float));
    w->label = calloc(n, 1);
    w->hidden = calloc(n * MLP_HIDDEN, sizeof(float));
    w->delta = calloc(n * MLP_HIDDEN, sizeof(float));
    w->output = calloc(n * MNIST_CLASSES, sizeof(float));
    if (w->input == NULL || w->label == NULL || w->hidden == NULL || w->delta == NULL ||
        w->output == NULL) {
        mlp_work_fini(w);
        return -1;
    }
    return 0;
}

void mlp_work_fini(struct mlp_work *w)
{
    free(w->input);
    free(w->label);
    free(w->hidden);
    free(w->delta);
    free(w->output);
    memset(w, 0, sizeof *w);
}

uint64_t mlp_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Roughly normal: the sum of four uniforms in [-1, 1) has variance 4/3. */
static float random_normal(uint64_t *state)
{
    double sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (double)(mlp_random(state) >> 11) * 0x1p-52 - 1.0;
    return (float)(sum * 0.8660254037844386);
}

void mlp_params_init(float *params, uint64_t seed)
{
    uint64_t state = seed;
    float *w1 = params + mlp_slices[MLP_W1].offset_elems;
    float *w2 = params + mlp_slices[MLP_W2].offset_elems;

    memset(params, 0, MLP_PARAMS * sizeof *params);
    for (size_t i = 0; i < W1_ELEMS; i++)
        w1[i] = random_normal(&state) * sqrtf(2.0f / MNIST_PIXELS);
    for (size_t i = 0; i < W2_ELEMS; i++)
        w2[i] = random_normal(&state) * sqrtf(2.0f / MLP_HIDDEN);
}

void mlp_load(struct mlp_work *w, const struct mnist_set *set, const int32_t *index,
              int32_t count)
{
    w->count = count;
    for (int32_t s = 0; s < count; s++) {
        const uint8_t *from = set->pixels + (size_t)index[s] * MNIST_PIXELS;
        float *to = w->input + (size_t)s * MNIST_PIXELS;

        for (int i = 0; i < MNIST_PIXELS; i++)
            to[i] = (float)from[i] / 255.0f;
        w->label[s] = set->labels[index[s]];
    }
}

/* y += a * x: every inner loop here is one of these, over contiguous floats, so that
 * the compiler vectorizes it without reordering sums. */
static inline void add_scaled(float *restrict y, const float *restrict x, float a,
                              int n)
{
    for (int i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* Pixels outside, samples inside: one row of W1 is read once for all samples. Four
 * fifths of the pixels are 0 and cost nothing. */
static void forward_hidden(struct mlp_work *w, const float *params)
{
    const float *w1 = params + mlp_slices[MLP_W1].offset_elems;
    const float *b1 = params + mlp_slices[MLP_B1].offset_elems;

    for (int32_t s = 0; s < w->count; s++)
        memcpy(w->hidden + (size_t)s * MLP_HIDDEN, b1, MLP_HIDDEN * sizeof *b1);
    for (int i = 0; i < MNIST_PIXELS; i++) {
        for (int32_t s = 0; s < w->count; s++) {
            float x = w->input[(size_t)s * MNIST_PIXELS + (size_t)i];

            if (x != 0.0f)
                add_scaled(w->hidden + (size_t)s * MLP_HIDDEN,
                           w1 + (size_t)i * MLP_HIDDEN, x, MLP_HIDDEN);
        }
    }
    for (size_t i = 0; i < (size_t)w->count * MLP_HIDDEN; i++)
        w->hidden[i] = w->hidden[i] > 0.0f ? w->hidden[i] : 0.0f;
}

/* Scores to probabilities in place; returns the index of the largest. */
static int softmax(float *row)
{
    int best = 0;
    float sum = 0.0f;

    for (int c = 1; c < MNIST_CLASSES; c++)
        best = row[c] > row[best] ? c : best;
    float top = row[best];
    for (int c = 0; c < MNIST_CLASSES; c++) {
        row[c] = expf(row[c] - top);
        sum += row[c];
    }
    for (int c = 0; c < MNIST_CLASSES; c++)
        row[c] /= sum;
    return best;
}

void mlp_forward(struct mlp_work *w, const float *params, double *loss_sum,
                 double *correct)
{
    const float *w2 = params + mlp_slices[MLP_W2].offset_elems;
    const float *b2 = params + mlp_slices[MLP_B2].offset_elems;

    forward_hidden(w, params);
    for (int32_t s = 0; s < w->count; s++) {
        const float *hidden = w->hidden + (size_t)s * MLP_HIDDEN;
        float *row = w->output + (size_t)s * MNIST_CLASSES;

        memcpy(row, b2, MNIST_CLASSES * sizeof *b2);
        for (int h = 0; h < MLP_HIDDEN; h++)
            add_scaled(row, w2 + (size_t)h * MNIST_CLASSES, hidden[h], MNIST_CLASSES);
        if (softmax(row) == w->label[s])
            *correct += 1;
        *loss_sum -= log(fmax((double)row[w->label[s]], 1e-30));
    }
}

void mlp_backward_output(struct mlp_work *w, const float *params, float *grads)
{
    const float *w2 = params + mlp_slices[MLP_W2].offset_elems;
    float *gw2 = grads + mlp_slices[MLP_W2].offset_elems;
    float *gb2 = grads + mlp_slices[MLP_B2].offset_elems;

    memset(gw2, 0, W2_ELEMS * sizeof *gw2);
    memset(gb2, 0, MNIST_CLASSES * sizeof *gb2);
    for (int32_t s = 0; s < w->count; s++) {
        const float *hidden = w->hidden + (size_t)s * MLP_HIDDEN;
        float *delta = w->delta + (size_t)s * MLP_HIDDEN;
        float *row = w->output + (size_t)s * MNIST_CLASSES;

        row[w->label[s]] -= 1.0f; /* d loss / d score = probability - one_hot(label) */
        add_scaled(gb2, row, 1.0f, MNIST_CLASSES);
        for (int h = 0; h < MLP_HIDDEN; h++) {
            const float *to = w2 + (size_t)h * MNIST_CLASSES;
            float sum = 0.0f;

            delta[h] = 0.0f;
            if (hidden[h] <= 0.0f)
                continue;
            add_scaled(gw2 + (size_t)h * MNIST_CLASSES, row, hidden[h], MNIST_CLASSES);
            for (int c = 0; c < MNIST_CLASSES; c++)
                sum += to[c] * row[c];
            delta[h] = sum;
        }
    }
}

void mlp_backward_hidden(struct mlp_work *w, float *grads)
{
    float *gw1 = grads + mlp_slices[MLP_W1].offset_elems;
    float *gb1 = grads + mlp_slices[MLP_B1].offset_elems;

    memset(gw1, 0, W1_ELEMS * sizeof *gw1);
    memset(gb1, 0, MLP_HIDDEN * sizeof *gb1);
    for (int32_t s = 0; s < w->count; s++)
        add_scaled(gb1, w->delta + (size_t)s * MLP_HIDDEN, 1.0f, MLP_HIDDEN);
    for (int i = 0; i < MNIST_PIXELS; i++) {
        for (int32_t s = 0; s < w->count; s++) {
            float x = w->input[(size_t)s * MNIST_PIXELS + (size_t)i];

            if (x != 0.0f)
                add_scaled(gw1 + (size_t)i * MLP_HIDDEN,
                           w->delta + (size_t)s * MLP_HIDDEN, x, MLP_HIDDEN);
        }
    }
}

void mlp_step(float *params, float *velocity, const float *grads, float grad_scale,
              float lr, float momentum)
{
    for (size_t i = 0; i < MLP_PARAMS; i++) {
        velocity[i] = momentum * velocity[i] + grad_scale * grads[i];
        params[i] -= lr * velocity[i];
    }
}
