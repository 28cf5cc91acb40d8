/* NORM: each row minus its mean (where `option` says so), over its standard deviation, times `weight`, plus `bias`.
 *
 * `other` has the normalised rows, which may lie in place of the input; `saved` has what each was multiplied by.
 */
#include "stages.h"

#include <math.h>

/* One row; returns what it was multiplied by. */
static float normalise_row(const Stage *s, const float *x, float *normal) {
    floats sum = spread(0.0f);
    for (int64_t j = 0; s->option && j < s->in; j += LANES) sum += take(x + j, s->in - j);
    float mean = sum_of(sum) / (float)s->in;
    sum = spread(0.0f);
    for (int64_t j = 0; j < s->in; j += LANES) {
        floats off = take(x + j, s->in - j) - mean;
        for (int64_t l = s->in - j; l < LANES; l++) off[l] = 0.0f;
        sum += off * off;
        put(normal + j, off, s->in - j);
    }
    float factor = 1.0f / sqrtf(sum_of(sum) / (float)s->in + (float)s->epsilon);
    for (int64_t j = 0; j < s->in; j += LANES) put(normal + j, take(normal + j, s->in - j) * factor, s->in - j);
    return factor;
}

void wholegrain_normalise(const Stage *s, const Item *item) {
    for (int64_t t = 0; t < s->rows; t++) {
        float *normal = item->values + s->other + t * s->in, *y = item->values + s->output + t * s->in;
        item->values[s->saved + t] = normalise_row(s, item->values + s->input + t * s->in, normal);
        for (int64_t j = 0; j < s->in; j += LANES) {
            int64_t left = s->in - j;
            floats own = take(normal + j, left);
            if (s->weight != NOWHERE) own *= take(item->parameters + s->weight + j, left);
            if (s->bias != NOWHERE) own += take(item->parameters + s->bias + j, left);
            put(y + j, own, left);
        }
    }
}

/* The gradients of weight and bias. */
static void add_scales(const Stage *s, const Item *item) {
    float *weight = s->weight == NOWHERE ? NULL : begin_gradient(item, s->weight, s->in);
    float *bias = s->bias == NOWHERE ? NULL : begin_gradient(item, s->bias, s->in);
    for (int64_t j = 0; j < s->in; j += LANES) {
        int64_t left = s->in - j;
        floats for_weight = spread(0.0f), for_bias = spread(0.0f);
        for (int64_t t = 0; t < s->rows; t++) {
            floats g = take(item->gradients + s->output_gradient + t * s->in + j, left);
            for_weight += g * take(item->values + s->other + t * s->in + j, left);
            for_bias += g;
        }
        if (weight) put(weight + j, take(weight + j, left) + for_weight, left);
        if (bias) put(bias + j, take(bias + j, left) + for_bias, left);
    }
}

/* What the gradient of a normalised row is. */
INLINE floats inward(const Stage *s, const Item *item, const float *g, int64_t j) {
    floats own = take(g + j, s->in - j);
    return s->weight == NOWHERE ? own : (floats)(own * take(item->parameters + s->weight + j, s->in - j));
}

void wholegrain_normalise_back(const Stage *s, const Item *item) {
    add_scales(s, item);
    for (int64_t t = 0; s->input_gradient != NOWHERE && t < s->rows; t++) {
        const float *g = item->gradients + s->output_gradient + t * s->in;
        const float *normal = item->values + s->other + t * s->in;
        floats sum = spread(0.0f), product = spread(0.0f);
        for (int64_t j = 0; j < s->in; j += LANES) {
            floats own = inward(s, item, g, j);
            sum += own;
            product += own * take(normal + j, s->in - j);
        }
        float mean = s->option ? sum_of(sum) / (float)s->in : 0.0f, along = sum_of(product) / (float)s->in;
        for (int64_t j = 0; j < s->in; j += LANES) {
            floats own = inward(s, item, g, j) - mean - take(normal + j, s->in - j) * along;
            give(s, item->gradients + s->input_gradient + t * s->in + j, own * item->values[s->saved + t], s->in - j);
        }
    }
}
