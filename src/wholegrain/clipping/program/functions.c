/* FUNCTION: of every value by itself. GATE: the first half of a row times the rectified second half. */
#include "stages.h"

INLINE floats rectified(floats x) { return choose((bits)(x <= 0.0f), spread(0.0f), x); }

/* The normal distribution function and, in `density`, its derivative: both off by at most 3e-7. From formula 7.1.26 of
 * Abramowitz and Stegun (1964) for the error function, which is off by 1.5e-7 before rounding. */
INLINE floats normal_distribution(floats x, floats *density) {
    floats z = magnitude(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z), e = exponential(-(z * z));
    floats p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    floats tail = 0.5f * (p * t) * e;
    *density = e * 0.39894228f;
    return choose((bits)(x < 0.0f), tail, 1.0f - tail);
}

INLINE floats apply(int64_t function, floats x) {
    floats density;
    if (function == RELU) return rectified(x);
    if (function == GELU) return x * normal_distribution(x, &density);
    return function == TANH ? hyperbolic_tangent(x) : logistic(x);
}

/* From the gradient of an output y that of its input; x is the input of GELU, which alone needs it. */
INLINE floats reverse(int64_t function, floats g, floats x, floats y) {
    if (function == RELU) return choose((bits)(y <= 0.0f), spread(0.0f), g);
    if (function == TANH) return g * (1.0f - y * y);
    if (function == SIGMOID) return g * ((1.0f - y) * y);
    floats density, below = normal_distribution(x, &density);
    return g * (below + x * density);
}

/* Written for one function, so that no choice is made in the loop. */
INLINE void apply_all(const Stage *s, const Item *item, const int64_t function) {
    const float *x = item->values + s->input;
    int64_t count = s->rows * s->in;
    for (int64_t j = 0; j < count; j += LANES)
        put(item->values + s->output + j, apply(function, take(x + j, count - j)), count - j);
}

INLINE void reverse_all(const Stage *s, const Item *item, const int64_t function) {
    const float *x = item->values + s->input, *y = item->values + s->output;
    const float *g = item->gradients + s->output_gradient;
    int64_t count = s->rows * s->in;
    for (int64_t j = 0; j < count; j += LANES) {
        int64_t left = count - j;
        floats own = reverse(function, take(g + j, left), take(x + j, left), take(y + j, left));
        give(s, item->gradients + s->input_gradient + j, own, left);
    }
}

void wholegrain_apply(const Stage *s, const Item *item) {
    if (s->option == RELU) apply_all(s, item, RELU);
    else if (s->option == GELU) apply_all(s, item, GELU);
    else if (s->option == TANH) apply_all(s, item, TANH);
    else apply_all(s, item, SIGMOID);
}

void wholegrain_apply_back(const Stage *s, const Item *item) {
    if (s->option == RELU) reverse_all(s, item, RELU);
    else if (s->option == GELU) reverse_all(s, item, GELU);
    else if (s->option == TANH) reverse_all(s, item, TANH);
    else reverse_all(s, item, SIGMOID);
}

void wholegrain_gate(const Stage *s, const Item *item) {
    for (int64_t t = 0; t < s->rows; t++) {
        const float *value = item->values + s->input + t * s->in, *gate = value + s->out;
        float *y = item->values + s->output + t * s->out;
        for (int64_t j = 0; j < s->out; j += LANES)
            put(y + j, take(value + j, s->out - j) * rectified(take(gate + j, s->out - j)), s->out - j);
    }
}

void wholegrain_gate_back(const Stage *s, const Item *item) {
    for (int64_t t = 0; t < s->rows; t++) {
        const float *value = item->values + s->input + t * s->in, *gate = value + s->out;
        const float *g = item->gradients + s->output_gradient + t * s->out;
        float *own = item->gradients + s->input_gradient + t * s->in;
        for (int64_t j = 0; j < s->out; j += LANES) {
            int64_t left = s->out - j;
            floats outward = take(g + j, left), open = take(gate + j, left);
            give(s, own + j, outward * rectified(open), left);
            give(s, own + s->out + j, choose((bits)(open <= 0.0f), spread(0.0f), outward * take(value + j, left)), left);
        }
    }
}
