/* Stages that look up, multiply, add and pick; the others have files of their own. */
#include "stages.h"

static void copy_rows(float *to, const float *from, int64_t count) { memcpy(to, from, (size_t)count * sizeof(float)); }

static void add_row(float *to, const float *from, int64_t count) {
    for (int64_t j = 0; j < count; j += LANES) put(to + j, take(to + j, count - j) + take(from + j, count - j), count - j);
}

/* ---- LOOK_UP: a row of a table for each token, and another for each place where `bias` is ---- */

static void look_up(const Stage *s, const Item *item) {
    for (int64_t t = 0; t < s->rows; t++) {
        float *y = item->values + s->output + t * s->out;
        copy_rows(y, item->parameters + s->weight + item->tokens[t] * s->out, s->out);
        if (s->bias != NOWHERE) add_row(y, item->parameters + s->bias + t * s->out, s->out);
    }
}

static void look_up_back(const Stage *s, const Item *item) {
    float *table = begin_gradient(item, s->weight, s->in * s->out);
    const float *g = item->gradients + s->output_gradient;
    for (int64_t t = 0; t < s->rows; t++) add_row(table + item->tokens[t] * s->out, g + t * s->out, s->out);
    if (s->bias == NOWHERE) return;
    float *places = begin_gradient(item, s->bias, s->heads * s->out); /* of which a window may have fewer */
    add_row(places, g, s->rows * s->out);
}

/* ---- COLUMNS: numbers as rows: each times a direction of its own, at a place of its own, after one that is learnt ---- */

static void columns(const Stage *s, const Item *item) {
    float *y = item->values + s->output;
    const float *directions = item->parameters + s->weight, *places = item->parameters + s->bias;
    copy_rows(y, item->parameters + s->other, s->out);
    for (int64_t t = 0; t + 1 < s->rows; t++)
        for (int64_t j = 0; j < s->out; j++)
            y[(t + 1) * s->out + j] = item->numbers[t] * directions[t * s->out + j] + places[t * s->out + j];
}

static void columns_back(const Stage *s, const Item *item) {
    const float *g = item->gradients + s->output_gradient;
    float *directions = begin_gradient(item, s->weight, (s->rows - 1) * s->out);
    add_row(begin_gradient(item, s->other, s->out), g, s->out);
    add_row(begin_gradient(item, s->bias, (s->rows - 1) * s->out), g + s->out, (s->rows - 1) * s->out);
    for (int64_t t = 0; t + 1 < s->rows; t++)
        for (int64_t j = 0; j < s->out; j++) directions[t * s->out + j] += item->numbers[t] * g[(t + 1) * s->out + j];
}

/* ---- LINEAR: x W' + b ---- */

static void linear(const Stage *s, const Item *item) {
    const float *x = s->input == NOWHERE ? item->numbers : item->values + s->input;
    int has_bias = s->bias != NOWHERE;
    wholegrain_multiply_packed((Sizes){s->rows, s->out, s->in}, rows_of(x, s->in), item->packed + s->forward_weight,
                               has_bias ? FROM_BIAS : FROM_ZERO, has_bias ? item->parameters + s->bias : NULL,
                               item->values + s->output, s->out);
}

static void linear_back(const Stage *s, const Item *item) {
    const float *g = item->gradients + s->output_gradient;
    const float *x = s->input == NOWHERE ? item->numbers : item->values + s->input;
    wholegrain_multiply((Sizes){s->out, s->in, s->rows}, columns_of(g, s->out), rows_of(x, s->in), item->start, NULL,
                        item->unit + s->weight, s->in);
    if (s->bias != NOWHERE) {
        float *own = begin_gradient(item, s->bias, s->out);
        for (int64_t t = 0; t < s->rows; t++) add_row(own, g + t * s->out, s->out);
    }
    if (s->input_gradient == NOWHERE) return;
    wholegrain_multiply_packed((Sizes){s->rows, s->in, s->out}, rows_of(g, s->out), item->packed + s->backward_weight,
                               s->adds ? FROM_ITSELF : FROM_ZERO, NULL, item->gradients + s->input_gradient, s->in);
}

/* ---- ADD: another value to the input, in its place; both have the output's gradient, where it lies ---- */

static void add(const Stage *s, const Item *item) {
    add_row(item->values + s->output, item->values + s->other, s->rows * s->in);
}

static void add_back(const Stage *s, const Item *item) { (void)s, (void)item; }

/* ---- MEAN of rows, and PICK of one ---- */

static void mean(const Stage *s, const Item *item) {
    const float *x = item->values + s->input;
    float *y = item->values + s->output;
    copy_rows(y, x, s->in);
    for (int64_t t = 1; t < s->rows; t++) add_row(y, x + t * s->in, s->in);
    for (int64_t j = 0; j < s->in; j++) y[j] /= (float)s->rows;
}

static void mean_back(const Stage *s, const Item *item) {
    const float *g = item->gradients + s->output_gradient;
    for (int64_t j = 0; j < s->in; j += LANES) {
        floats own = take(g + j, s->in - j) / (float)s->rows;
        for (int64_t t = 0; t < s->rows; t++)
            give(s, item->gradients + s->input_gradient + t * s->in + j, own, s->in - j);
    }
}

static void pick(const Stage *s, const Item *item) {
    copy_rows(item->values + s->output, item->values + s->input + s->option * s->in, s->in);
}

static void pick_back(const Stage *s, const Item *item) {
    float *g = item->gradients + s->input_gradient;
    if (!s->adds) memset(g, 0, (size_t)(s->rows * s->in) * sizeof(float));
    add_row(g + s->option * s->in, item->gradients + s->output_gradient, s->in);
}

/* ---- all of them ---- */

void wholegrain_forward(const Stage *stage, const Item *item) {
    static const StageProgram programs[] = {
        [LOOK_UP] = look_up,          [COLUMNS] = columns,         [LINEAR] = linear,
        [NORM] = wholegrain_normalise, [FUNCTION] = wholegrain_apply, [GATE] = wholegrain_gate,
        [ATTENTION] = wholegrain_attend, [ADD] = add, [MEAN] = mean, [PICK] = pick,
    };
    programs[stage->kind](stage, item);
}

void wholegrain_backward(const Stage *stage, const Item *item) {
    static const StageProgram programs[] = {
        [LOOK_UP] = look_up_back,          [COLUMNS] = columns_back,         [LINEAR] = linear_back,
        [NORM] = wholegrain_normalise_back, [FUNCTION] = wholegrain_apply_back, [GATE] = wholegrain_gate_back,
        [ATTENTION] = wholegrain_attend_back, [ADD] = add_back, [MEAN] = mean_back, [PICK] = pick_back,
    };
    programs[stage->kind](stage, item);
}
