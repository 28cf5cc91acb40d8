/* An LSTM layer in one direction, through time (gradients/layers/recurrent.py).
 *
 * All of a step is computed item by item: products are those of products.h, and everything else takes values of one item
 * and one hidden unit. Rows whose length is no multiple of a vector end with one that is filled up, so that every number is
 * computed by the same operations.
 */
#include "products.h"
#include "vectors.h"

#include <string.h>

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

/* Gates i, f, g, o [4, hidden] before their functions, and the cell before: all of the item's next state. */
static void step_forward(int64_t hidden, float *gate, const float *cell, float *next, float *squashed, float *out) {
    for (int64_t j = 0; j < hidden; j += LANES) {
        int64_t left = hidden - j;
        floats i = logistic(take(gate + j, left)), f = logistic(take(gate + hidden + j, left));
        floats g = hyperbolic_tangent(take(gate + 2 * hidden + j, left));
        floats o = logistic(take(gate + 3 * hidden + j, left));
        floats c = multiply_add(f, take(cell + j, left), i * g), s = hyperbolic_tangent(c);
        put(gate + j, i, left), put(gate + hidden + j, f, left);
        put(gate + 2 * hidden + j, g, left), put(gate + 3 * hidden + j, o, left);
        put(next + j, c, left), put(squashed + j, s, left), put(out + j, o * s, left);
    }
}

/* gates [time, item, 4 hidden] hold the products with x; outs and cells [time + 1, item, hidden] hold the first state.
 * `weight` is [4 hidden, hidden], and `packed` has room for it. */
void wholegrain_lstm_forward(int64_t times, int64_t items, int64_t hidden, const float *weight, float *gates,
                             float *outs, float *cells, float *squashed, float *packed) {
    int64_t state = items * hidden;
    wholegrain_pack(hidden, 4 * hidden, columns_of(weight, hidden), packed);
    for (int64_t t = 0; t < times; t++, gates += 4 * state, outs += state, cells += state, squashed += state) {
        wholegrain_multiply_packed((Sizes){items, 4 * hidden, hidden}, rows_of(outs, hidden), packed, FROM_ITSELF,
                                   NULL, gates, 4 * hidden);
        for (int64_t n = 0; n < state; n += hidden)
            step_forward(hidden, gates + 4 * n, cells + n, cells + state + n, squashed + n, outs + state + n);
    }
}

/* One item's gradients at the gates, and of the cell before; dh is that of the output. */
static void step_backward(int64_t hidden, const float *gate, const float *cell, const float *squashed, const float *dh,
                          float *dc, float *delta) {
    for (int64_t j = 0; j < hidden; j += LANES) {
        int64_t left = hidden - j;
        floats i = take(gate + j, left), f = take(gate + hidden + j, left);
        floats g = take(gate + 2 * hidden + j, left), o = take(gate + 3 * hidden + j, left);
        floats s = take(squashed + j, left), d = take(dh + j, left);
        floats c = take(dc + j, left) + d * (o * (1.0f - s * s));
        put(delta + j, c * (g * (i - i * i)), left);
        put(delta + hidden + j, c * (take(cell + j, left) * (f - f * f)), left);
        put(delta + 2 * hidden + j, c * (i * (1.0f - g * g)), left);
        put(delta + 3 * hidden + j, d * (s * (o - o * o)), left);
        put(dc + j, c * f, left);
    }
}

/* Adds up the gradient of an output: from above (NULL: none), and from the time after it. */
static void receive(int64_t count, const float *above, float *dh) {
    for (int64_t j = 0; above && j < count; j++) dh[j] += above[j];
}

/* `dy` [time, item, hidden] or NULL; rows of time and item are so far apart. dh and dc [item, hidden] hold gradients of the
 * last state, and then those of the first; delta [time, item, 4 hidden] gets those at the gates. */
void wholegrain_lstm_backward(int64_t times, int64_t items, int64_t hidden, const float *weight, const float *gates,
                              const float *cells, const float *squashed, const float *dy, int64_t dy_time,
                              int64_t dy_item, float *dh, float *dc, float *delta, float *packed) {
    int64_t state = items * hidden;
    wholegrain_pack(4 * hidden, hidden, rows_of(weight, hidden), packed);
    for (int64_t t = times - 1; t >= 0; t--) {
        float *own = delta + 4 * t * state;
        for (int64_t n = 0; n < items; n++) {
            int64_t at = n * hidden, past = t * state + at;
            receive(hidden, dy ? dy + t * dy_time + n * dy_item : NULL, dh + at);
            step_backward(hidden, gates + 4 * past, cells + past, squashed + past, dh + at, dc + at, own + 4 * at);
        }
        wholegrain_multiply_packed((Sizes){items, hidden, 4 * hidden}, rows_of(own, 4 * hidden), packed, FROM_ZERO,
                                   NULL, dh, hidden);
    }
}
