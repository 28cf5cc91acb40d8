/* The clipped sum of a model that is a list of stages (stages.h): every unit is computed by itself, item after item.
 *
 * An item passes the stages forwards and backwards, and its gradient is added to that of its unit, in single precision.
 * When a unit is complete, this gradient's norm is computed in double precision, and it is clipped and added to the
 * total (units.h). All arithmetic is IEEE 754 in the order in which it is written; fused operations are those of
 * products.h. Nothing that an item leaves behind is read by another but the sum of its own unit. So what is computed of
 * a unit is a function of its own items and of the parameters, to the last bit: docs/arithmetic.md has the proof.
 */
#include <stdint.h>
#include <string.h>

#include "stages.h"
#include "try.h"
#include "units.h"

enum { CROSS_ENTROPY, BINARY_CROSS_ENTROPY, SQUARED_ERROR, HUBER };
enum { DONE, NOT_IN_ORDER, BAD_TARGET, BAD_TOKEN };

/* What is public. The last stage gives the outputs. Sizes are counted in floats, each a multiple of LANES. */
typedef struct {
    const Stage *stages;
    int64_t count, loss, outputs;
    int64_t length;     /* numbers or tokens of an item */
    int64_t vocabulary; /* tokens that there are; 0 where items are numbers */
    int64_t parameters, values, gradients, packed;
    Clip clip;
} Encoder;

typedef struct {
    float *values, *gradients, *unit, *packed;
    double *total;
} Buffers;

static Buffers find_buffers(const Encoder *model, void *scratch) {
    Buffers b;
    b.total = (double *)(((uintptr_t)scratch + 63) / 64 * 64);
    b.unit = (float *)(b.total + model->parameters);
    b.values = b.unit + model->parameters;
    b.gradients = b.values + model->values;
    b.packed = b.gradients + model->gradients;
    return b;
}

/* Bytes of scratch memory that a model needs. */
int64_t wholegrain_encoder_scratch(const Encoder *model) {
    return 64 + 12 * model->parameters + 4 * (model->values + model->gradients + model->packed);
}

/* Every weight as products need it: transposed for the way forwards, as it is for the way back. */
static void pack_weights(const Encoder *model, const float *parameters, float *packed) {
    for (const Stage *s = model->stages; s < model->stages + model->count; s++) {
        if (s->kind != LINEAR) continue;
        const float *weight = parameters + s->weight;
        wholegrain_pack(s->in, s->out, columns_of(weight, s->in), packed + s->forward_weight);
        if (s->input_gradient != NOWHERE)
            wholegrain_pack(s->out, s->in, rows_of(weight, s->in), packed + s->backward_weight);
    }
}

INLINE float distance(int64_t loss, float z, float y) {
    if (loss == BINARY_CROSS_ENTROPY) return logistic(spread(z))[0] - y;
    float off = z - y;
    return loss != HUBER || !(off > 1.0f || off < -1.0f) ? off : off > 0.0f ? 1.0f : -1.0f;
}

/* The gradient of an item's loss with respect to its outputs. */
static int outward_gradient(const Encoder *model, const void *targets, int64_t row, const float *z, float *g) {
    int64_t outputs = model->outputs;
    if (model->loss != CROSS_ENTROPY) {
        const float *y = (const float *)targets + row * outputs;
        for (int64_t o = 0; o < outputs; o++) g[o] = distance(model->loss, z[o], y[o]) / (float)outputs;
        return DONE;
    }
    int64_t target = ((const int64_t *)targets)[row];
    if (target < 0 || target >= outputs) return BAD_TARGET;
    memcpy(g, z, (size_t)outputs * sizeof(float));
    wholegrain_softmax(g, outputs, 1.0f);
    g[target] -= 1.0f;
    return DONE;
}

static int read_item(const Encoder *model, const Batch *batch, int64_t row, Item *item) {
    if (!model->vocabulary) {
        item->numbers = (const float *)batch->inputs + row * model->length;
        return DONE;
    }
    item->tokens = (const int64_t *)batch->inputs + row * model->length;
    for (int64_t t = 0; t < model->length; t++)
        if (item->tokens[t] < 0 || item->tokens[t] >= model->vocabulary) return BAD_TOKEN;
    return DONE;
}

/* Forwards and backwards: the gradient of one item, added to that of its unit. */
static int pass(const Encoder *model, const Batch *batch, int64_t row, Item *item) {
    const Stage *last = model->stages + model->count - 1;
    int failed = read_item(model, batch, row, item);
    if (failed) return failed;
    for (const Stage *s = model->stages; s <= last; s++) wholegrain_forward(s, item);
    failed = outward_gradient(model, batch->targets, row, item->values + last->output,
                              item->gradients + last->output_gradient);
    for (const Stage *s = last; !failed && s >= model->stages; s--) wholegrain_backward(s, item);
    return failed;
}

/* Add the sum of a part to that of all, and begin anew. */
static void finish_part(const Encoder *model, double *total, double *sum, int64_t size) {
    for (int64_t k = 0; k < size; k++) sum[k] += total[k];
    memset(total, 0, (size_t)model->parameters * sizeof(double));
}

/* The clipped sum of a batch at `size` parameters, added to `sum`; and how many units were left out. */
int wholegrain_encoder_sum(const Encoder *model, const float *parameters, int64_t size, const Batch *batch,
                           void *scratch, double *sum, int64_t *zeroed) {
    if (!wholegrain_is_in_order(batch)) return NOT_IN_ORDER;
    Buffers b = find_buffers(model, scratch);
    Item item = {parameters, b.packed, b.values, b.gradients, b.unit, FROM_ZERO, NULL, NULL};
    pack_weights(model, parameters, b.packed);
    memset(b.total, 0, (size_t)model->parameters * sizeof(double));
    memset(b.unit, 0, (size_t)model->parameters * sizeof(float));
    *zeroed = 0;
    for (int64_t k = 0, begun = 0; k < batch->items; k++) {
        int64_t row = row_of(batch, k);
        item.start = k == begun ? FROM_ZERO : FROM_ITSELF;
        int failed = pass(model, batch, row, &item);
        if (failed) return failed;
        if (k + 1 == batch->items || !are_one(batch, k, k + 1)) {
            double share = batch->shares ? batch->shares[row] : 1.0;
            *zeroed += wholegrain_add_unit(&model->clip, b.unit, model->parameters, (double)(k + 1 - begun), share,
                                           b.total);
            begun = k + 1;
        }
        if ((k + 1) % PART == 0 || k + 1 == batch->items) finish_part(model, b.total, sum, size);
    }
    return DONE;
}
