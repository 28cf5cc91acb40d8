/* ATTENTION: from [rows, 3 x out] (queries, keys, values; of each, head after head) to [rows, out].
 *
 * `saved` has the weights [head, row, row], and room for one more such matrix.
 */
#include "stages.h"

#include <math.h>

void wholegrain_softmax(float *x, int64_t count, float scale) {
    floats most = spread(x[0]), sum = spread(0.0f), none = spread(-INFINITY);
    for (int64_t j = 0; j < count; j += LANES) {
        floats own = take(x + j, count - j);
        for (int64_t l = count - j; l < LANES; l++) own[l] = x[0];
        most = choose((bits)(own > most), own, most);
    }
    float top = most[0];
    for (int l = 1; l < LANES; l++) top = most[l] > top ? most[l] : top;
    for (int64_t j = 0; j < count; j += LANES) {
        floats own = take(x + j, count - j);
        for (int64_t l = count - j; l < LANES; l++) own[l] = none[l];
        own = exponential((own - top) * scale);
        sum += own;
        put(x + j, own, count - j);
    }
    float all = sum_of(sum);
    for (int64_t j = 0; j < count; j += LANES) put(x + j, take(x + j, count - j) / all, count - j);
}

/* From the gradient of weights that of `scale` times the scores, in its place. */
static void softmax_back(float *g, const float *weights, int64_t count, float scale) {
    floats sum = spread(0.0f);
    for (int64_t j = 0; j < count; j += LANES) sum += take(g + j, count - j) * take(weights + j, count - j);
    float all = sum_of(sum);
    for (int64_t j = 0; j < count; j += LANES) {
        floats own = (take(g + j, count - j) - all) * take(weights + j, count - j);
        put(g + j, own * scale, count - j);
    }
}

/* Rows that row t attends to. */
INLINE int64_t seen(const Stage *s, int64_t t) { return s->option ? t + 1 : s->rows; }

static void clear_unseen(const Stage *s, float *row, int64_t t) {
    memset(row + seen(s, t), 0, (size_t)(s->rows - seen(s, t)) * sizeof(float));
}

INLINE float scale_of(const Stage *s) { return (float)(1.0 / sqrt((double)(s->out / s->heads))); }

void wholegrain_attend(const Stage *s, const Item *item) {
    int64_t rows = s->rows, width = s->out / s->heads, step = 3 * s->out;
    for (int64_t h = 0; h < s->heads; h++) {
        const float *query = item->values + s->input + h * width, *key = query + s->out, *value = key + s->out;
        float *weights = item->values + s->saved + h * rows * rows;
        wholegrain_multiply((Sizes){rows, rows, width}, rows_of(query, step), columns_of(key, step), FROM_ZERO, NULL,
                            weights, rows);
        for (int64_t t = 0; t < rows; t++) {
            wholegrain_softmax(weights + t * rows, seen(s, t), scale_of(s));
            clear_unseen(s, weights + t * rows, t);
        }
        wholegrain_multiply((Sizes){rows, width, rows}, rows_of(weights, rows), rows_of(value, step), FROM_ZERO, NULL,
                            item->values + s->output + h * width, s->out);
    }
}

void wholegrain_attend_back(const Stage *s, const Item *item) {
    int64_t rows = s->rows, width = s->out / s->heads, step = 3 * s->out;
    float *back = item->values + s->saved + s->heads * rows * rows;
    Sizes from_weights = {rows, width, rows};
    for (int64_t h = 0; h < s->heads; h++) {
        const float *query = item->values + s->input + h * width, *key = query + s->out, *value = key + s->out;
        const float *weights = item->values + s->saved + h * rows * rows;
        const float *g = item->gradients + s->output_gradient + h * width;
        float *own = item->gradients + s->input_gradient + h * width;
        wholegrain_multiply((Sizes){rows, rows, width}, rows_of(g, s->out), columns_of(value, step), FROM_ZERO, NULL,
                            back, rows);
        for (int64_t t = 0; t < rows; t++) {
            softmax_back(back + t * rows, weights + t * rows, seen(s, t), scale_of(s));
            clear_unseen(s, back + t * rows, t);
        }
        wholegrain_multiply(from_weights, rows_of(back, rows), rows_of(key, step), FROM_ZERO, NULL, own, step);
        wholegrain_multiply(from_weights, columns_of(back, rows), rows_of(query, step), FROM_ZERO, NULL, own + s->out,
                            step);
        wholegrain_multiply(from_weights, columns_of(weights, rows), rows_of(g, s->out), FROM_ZERO, NULL,
                            own + 2 * s->out, step);
    }
}
