/* A model as a list of stages, which one item passes forwards and backwards.
 *
 * A stage takes values [rows, in] and gives values [rows, out]. Where they lie, and where their gradients do, was decided
 * when the list was made (stage_list.py): places are counted in floats from the start of `values`, `gradients`, `packed`
 * or the parameters. What a stage reads of them was written by this item before: nothing is left over from another.
 */
#ifndef WHOLEGRAIN_STAGES_H
#define WHOLEGRAIN_STAGES_H

#include <stdint.h>
#include <string.h>

#include "products.h"
#include "vectors.h"

enum { LOOK_UP, COLUMNS, LINEAR, NORM, FUNCTION, GATE, ATTENTION, ADD, MEAN, PICK };
enum { RELU, GELU, TANH, SIGMOID };
#define NOWHERE (-1)

typedef struct {
    int64_t kind;
    int64_t option; /* which function; whether a norm is centred; whether attention is causal; which row is picked */
    int64_t rows, in, out, heads;
    int64_t weight, bias;                   /* of parameters, or NOWHERE */
    int64_t forward_weight, backward_weight; /* the same weight, laid out for products */
    int64_t input, other, output, saved;    /* of values */
    int64_t input_gradient, output_gradient; /* NOWHERE where nobody needs it */
    int64_t adds;                           /* whether the input has a gradient already, which this one is added to */
    double epsilon;
} Stage;

/* What one item's stages work with. */
typedef struct {
    const float *parameters, *packed;
    float *values, *gradients;
    float *unit;           /* the gradient of the unit, in the order of the parameters */
    Start start;           /* FROM_ZERO for the first item of a unit */
    const int64_t *tokens; /* what a model reads is one of both */
    const float *numbers;
} Item;

typedef void (*StageProgram)(const Stage *stage, const Item *item);

void wholegrain_forward(const Stage *stage, const Item *item);
void wholegrain_backward(const Stage *stage, const Item *item);

/* Softmax of `scale` times x[count], in place. */
void wholegrain_softmax(float *x, int64_t count, float scale);

#define STAGE(NAME) void wholegrain_##NAME(const Stage *stage, const Item *item)
STAGE(attend);
STAGE(attend_back);
STAGE(normalise);
STAGE(normalise_back);
STAGE(apply);
STAGE(apply_back);
STAGE(gate);
STAGE(gate_back);

/* ---- rows of any length, vector by vector ---- */

INLINE floats take(const float *at, int64_t left) {
    floats x = {0};
    if (left >= LANES) return *(const loose_floats *)at;
    memcpy(&x, at, (size_t)left * sizeof(float));
    return x;
}

INLINE void put(float *at, floats x, int64_t left) {
    if (left >= LANES) *(loose_floats *)at = x;
    else memcpy(at, &x, (size_t)left * sizeof(float));
}

/* The sum of all lanes, halves first. */
INLINE float sum_of(floats x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) x[l] += x[l + half];
    return x[0];
}

/* A gradient of an input: in place of what is there, or added to it. */
INLINE void give(const Stage *stage, float *at, floats g, int64_t left) {
    put(at, stage->adds ? (floats)(take(at, left) + g) : g, left);
}

/* What a unit's gradient of so many parameters begins with, before this item's is added. */
INLINE float *begin_gradient(const Item *item, int64_t place, int64_t count) {
    float *own = item->unit + place;
    if (item->start == FROM_ZERO) memset(own, 0, (size_t)count * sizeof(float));
    return own;
}

#endif
