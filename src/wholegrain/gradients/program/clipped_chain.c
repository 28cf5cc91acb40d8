/* The clipped sum of a chain of linear layers: every item and every subject is computed by itself.
 *
 * All arithmetic is IEEE 754 in the order in which it is written (vectors.h). Items lie side by side in the lanes of
 * vectors, on which operations are elementwise. So what is computed of an item is a function of its own values and of the
 * parameters, to the last bit, wherever it lies and whoever is beside it. docs/arithmetic.md has the proof that rests
 * on this.
 *
 * A unit is what is clipped as one: an item, or neighbouring items of one subject. Activations and the gradients of
 * outputs are in single precision; products of them, norms, factors and sums in double precision, in which products of
 * two numbers of single precision are exact and nothing over- or underflows.
 */
#include <math.h>
#include <string.h>

#include "try.h"
#include "vectors.h"

#define MOST_LAYERS 16
#define PART (1 << 15) /* items whose sums are added up by themselves, so that rounding does not grow with n squared */

enum { NO_FUNCTION, RELU, TANH, SIGMOID };
enum { CROSS_ENTROPY, BINARY_CROSS_ENTROPY, SQUARED_ERROR, HUBER };
enum { DONE, NOT_IN_ORDER, BAD_TARGET, BAD_CHAIN };

/* What is public: shapes, functions before layers, loss, clip. `widths` has one number more than there are layers. */
typedef struct {
    int64_t layers, loss;
    int64_t widths[MOST_LAYERS + 1], functions[MOST_LAYERS];
    double norm;      /* infinite where nothing is clipped */
    int64_t averages; /* whether a unit's gradient is the mean over its items */
} Chain;

/* A batch: item k of the sum is row `order[k]`. Neighbours of one group are a unit; without groups each item is one. */
typedef struct {
    const float *inputs;
    const void *targets;
    const int64_t *groups; /* [row] or NULL */
    const int64_t *order;  /* [item] or NULL: as they lie */
    const double *shares;  /* [row] or NULL: what an item's clipped gradient is multiplied by, where it is a unit */
    int64_t items;
} Batch;

/* Buffers for one block of items; offsets of layers are in `Places`. */
typedef struct {
    floats *values;   /* the inputs of layers [feature][lane] */
    floats *outward;  /* gradients of their outputs [output][lane] */
    double *rows;     /* the inputs once more, with a 1 behind them [lane][feature] */
    double *weighted; /* gradients of outputs, times a factor where it is known [output][lane] */
    double *unit;     /* the sum of a unit's gradients [output][feature and 1] */
    double *total;    /* the clipped sum of a part of the batch, laid out alike */
    double *whole;    /* the sum of all parts */
} Buffers;

typedef struct {
    int64_t values[MOST_LAYERS], outward[MOST_LAYERS], rows[MOST_LAYERS], sums[MOST_LAYERS];
    int64_t parameters[MOST_LAYERS], strides[MOST_LAYERS];
    int64_t all_values, all_outward, all_rows, all_sums, all_parameters;
} Places;

INLINE int64_t row_of(const Batch *batch, int64_t item) { return batch->order ? batch->order[item] : item; }

/* ---- functions of single values ---- */

INLINE floats apply(int64_t function, floats x) {
    if (function == RELU) return choose((bits)(x <= 0.0f), spread(0.0f), x);
    return function == TANH ? hyperbolic_tangent(x) : logistic(x);
}

/* From the gradient of y that of x, where y is the function of x. */
INLINE floats reverse(int64_t function, floats g, floats y) {
    if (function == RELU) return choose((bits)(y <= 0.0f), spread(0.0f), g);
    return function == TANH ? g * (1.0f - y * y) : g * ((1.0f - y) * y);
}

/* ---- products ---- */

/* COUNT neighbouring rows of outputs: b + W x, feature after feature. */
INLINE void forward_rows(const float *w, const float *b, const floats *x, floats *y, int64_t in, const int count) {
    floats sum[8];
    for (int k = 0; k < count; k++) sum[k] = spread(b[k]);
    for (int64_t j = 0; j < in; j++)
        for (int k = 0; k < count; k++) sum[k] += w[k * in + j] * x[j];
    for (int k = 0; k < count; k++) y[k] = sum[k];
}

static void forward(const float *w, const float *b, const floats *x, floats *y, int64_t in, int64_t out) {
    int64_t o = 0;
    for (; o + 8 <= out; o += 8) forward_rows(w + o * in, b + o, x, y + o, in, 8);
    for (; o + 2 <= out; o += 2) forward_rows(w + o * in, b + o, x, y + o, in, 2);
    for (; o < out; o++) forward_rows(w + o * in, b + o, x, y + o, in, 1);
}

/* COUNT neighbouring features: W' g, output after output. */
INLINE void backward_columns(const float *w, const floats *g, floats *x, int64_t in, int64_t out, const int count) {
    floats sum[8];
    for (int k = 0; k < count; k++) sum[k] = spread(0.0f);
    for (int64_t o = 0; o < out; o++)
        for (int k = 0; k < count; k++) sum[k] += w[o * in + k] * g[o];
    for (int k = 0; k < count; k++) x[k] = sum[k];
}

static void backward(const float *w, const floats *g, floats *x, int64_t in, int64_t out) {
    int64_t j = 0;
    for (; j + 8 <= in; j += 8) backward_columns(w + j, g, x + j, in, out, 8);
    for (; j < in; j++) backward_columns(w + j, g, x + j, in, out, 1);
}

/* sum[output][feature] += weighted[output][lane] * rows[lane][feature], lane after lane: COUNT outputs, VECTORS of
 * features. */
INLINE void add_tile(double *sum, const double *weighted, const double *rows, int64_t stride, int first, int last,
                     const int count, const int vectors) {
    doubles part[4][4];
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vectors; v++) part[k][v] = *(doubles *)(sum + k * stride + v * WIDE);
    for (int lane = first; lane < last; lane++)
        for (int v = 0; v < vectors; v++) {
            doubles x = *(const doubles *)(rows + lane * stride + v * WIDE);
            for (int k = 0; k < count; k++) part[k][v] += weighted[k * LANES + lane] * x;
        }
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vectors; v++) *(doubles *)(sum + k * stride + v * WIDE) = part[k][v];
}

INLINE void add_rows(double *sum, const double *weighted, const double *rows, int64_t stride, int first, int last,
                     const int count) {
    int64_t j = 0;
    for (; j + 4 * WIDE <= stride; j += 4 * WIDE) add_tile(sum + j, weighted, rows + j, stride, first, last, count, 4);
    if (j + 3 * WIDE == stride) add_tile(sum + j, weighted, rows + j, stride, first, last, count, 3);
    else if (j + 2 * WIDE == stride) add_tile(sum + j, weighted, rows + j, stride, first, last, count, 2);
    else if (j + WIDE == stride) add_tile(sum + j, weighted, rows + j, stride, first, last, count, 1);
}

static void add_products(double *sum, const double *weighted, const double *rows, int64_t out, int64_t stride,
                         int first, int last) {
    int64_t o = 0;
    for (; o + 4 <= out; o += 4) add_rows(sum + o * stride, weighted + o * LANES, rows, stride, first, last, 4);
    for (; o < out; o++) add_rows(sum + o * stride, weighted + o * LANES, rows, stride, first, last, 1);
}

/* ---- one block of items ---- */

static void load_inputs(const Batch *batch, int64_t start, int count, int64_t features, floats *x) {
    memset(x, 0, (size_t)features * sizeof(floats));
    for (int lane = 0; lane < count; lane++) {
        const float *row = batch->inputs + row_of(batch, start + lane) * features;
        for (int64_t j = 0; j < features; j++) ((float *)x)[j * LANES + lane] = row[j];
    }
}

/* The gradient of each item's own loss, in place of its outputs. */
static int outward_gradient(const Chain *chain, const Batch *batch, int64_t start, int count, floats *z) {
    int64_t out = chain->widths[chain->layers];
    floats *y = z + out; /* room for targets */
    if (chain->loss == CROSS_ENTROPY) {
        floats most = z[0], sum = spread(0.0f);
        for (int64_t o = 1; o < out; o++) most = choose((bits)(z[o] > most), z[o], most);
        for (int64_t o = 0; o < out; o++) sum += z[o] = exponential(z[o] - most);
        for (int64_t o = 0; o < out; o++) z[o] /= sum;
        for (int lane = 0; lane < count; lane++) {
            int64_t target = ((const int64_t *)batch->targets)[row_of(batch, start + lane)];
            if (target < 0 || target >= out) return BAD_TARGET;
            z[target][lane] -= 1.0f;
        }
        return DONE;
    }
    memset(y, 0, (size_t)out * sizeof(floats));
    for (int lane = 0; lane < count; lane++) {
        int64_t item = row_of(batch, start + lane);
        for (int64_t o = 0; o < out; o++) y[o][lane] = ((const float *)batch->targets)[item * out + o];
    }
    for (int64_t o = 0; o < out; o++) {
        floats g = (chain->loss == BINARY_CROSS_ENTROPY ? logistic(z[o]) : z[o]) - y[o];
        if (chain->loss == HUBER) {
            g = choose((bits)(g > 1.0f), spread(1.0f), g);
            g = choose((bits)(g < -1.0f), spread(-1.0f), g);
        }
        z[o] = g / (float)out;
    }
    return DONE;
}

/* Forward and backward: the inputs of all layers, and the gradients of their outputs. */
static int pass(const Chain *chain, const Places *at, const float *parameters, const Batch *batch, int64_t start,
                int count, const Buffers *b) {
    load_inputs(batch, start, count, chain->widths[0], b->values);
    for (int64_t l = 0; l < chain->layers; l++) {
        int64_t in = chain->widths[l], out = chain->widths[l + 1];
        const float *w = parameters + at->parameters[l];
        int is_last = l + 1 == chain->layers;
        floats *y = is_last ? b->outward + at->outward[l] : b->values + at->values[l + 1];
        forward(w, w + in * out, b->values + at->values[l], y, in, out);
        if (!is_last)
            for (int64_t o = 0; o < out; o++) y[o] = apply(chain->functions[l + 1], y[o]);
    }
    int failed = outward_gradient(chain, batch, start, count, b->outward + at->outward[chain->layers - 1]);
    for (int64_t l = chain->layers - 1; !failed && l > 0; l--) {
        int64_t in = chain->widths[l], out = chain->widths[l + 1];
        floats *g = b->outward + at->outward[l - 1], *y = b->values + at->values[l];
        backward(parameters + at->parameters[l], b->outward + at->outward[l], g, in, out);
        for (int64_t j = 0; j < in; j++) g[j] = reverse(chain->functions[l], g[j], y[j]);
    }
    return failed;
}

/* Inputs of layers as rows in double precision, each with a 1 behind it, by which biases are multiplied. */
static void lay_out_rows(const Chain *chain, const Places *at, const Buffers *b) {
    for (int64_t l = 0; l < chain->layers; l++) {
        int64_t in = chain->widths[l], stride = at->strides[l];
        const float *x = (const float *)(b->values + at->values[l]);
        double *rows = b->rows + at->rows[l];
        for (int lane = 0; lane < LANES; lane++) {
            for (int64_t j = 0; j < in; j++) rows[lane * stride + j] = x[j * LANES + lane];
            rows[lane * stride + in] = 1.0;
        }
    }
}

/* ---- clipping ---- */

/* What a gradient whose squared norm is known is multiplied by, to be clipped and then counted. */
static double clip_factor(const Chain *chain, double squared, double items, double share) {
    double length = sqrt(squared), factor = share;
    if (chain->averages) length /= items, factor /= items;
    return length > chain->norm ? chain->norm / length * factor : factor;
}

/* Each item is a unit: the norm of a product of two vectors is the product of theirs. Returns how many were left out. */
static int64_t add_items(const Chain *chain, const Places *at, const Batch *batch, int64_t start, int count,
                         const Buffers *b) {
    double squared[LANES] __attribute__((aligned(64))) = {0}, factors[LANES] __attribute__((aligned(64))) = {0};
    int64_t zeroed = 0;
    for (int64_t l = 0; l < chain->layers; l++)
        for (int part = 0; part < LANES / WIDE; part++) {
            doubles x = {0}, g = {0};
            for (int64_t j = 0; j < chain->widths[l]; j++) {
                doubles v = widen(b->values + at->values[l] + j, part);
                x += v * v;
            }
            for (int64_t o = 0; o < chain->widths[l + 1]; o++) {
                doubles v = widen(b->outward + at->outward[l] + o, part);
                g += v * v;
            }
            ((doubles *)squared)[part] += g * (x + 1.0);
        }
    for (int lane = 0; lane < count; lane++) {
        int finite = squared[lane] <= DBL_MAX;
        zeroed += !finite;
        double share = batch->shares ? batch->shares[row_of(batch, start + lane)] : 1.0;
        factors[lane] = finite ? clip_factor(chain, squared[lane], 1.0, share) : 0.0;
        if (finite) continue;
        for (int64_t v = 0; v < at->all_outward; v++) b->outward[v][lane] = 0.0f; /* 0 times infinity is not 0 */
        for (int64_t l = 0; l < chain->layers; l++)
            memset(b->rows + at->rows[l] + lane * at->strides[l], 0, (size_t)at->strides[l] * sizeof(double));
    }
    for (int64_t v = 0; v < at->all_outward; v++)
        for (int part = 0; part < LANES / WIDE; part++)
            ((doubles *)(b->weighted + v * LANES))[part] = ((doubles *)factors)[part] * widen(b->outward + v, part);
    for (int64_t l = 0; l < chain->layers; l++)
        add_products(b->total + at->sums[l], b->weighted + at->outward[l] * LANES, b->rows + at->rows[l],
                     chain->widths[l + 1], at->strides[l], 0, count);
    return zeroed;
}

/* Clip what was summed up of a unit, add it to the total and begin anew. Returns whether it was left out. */
static int64_t finish_unit(const Chain *chain, const Places *at, double items, const Buffers *b) {
    doubles parts[4] = {{0}, {0}, {0}, {0}}, *own = (doubles *)b->unit, *total = (doubles *)b->total;
    int64_t count = at->all_sums / WIDE;
    for (int64_t v = 0; v < count; v++) parts[v % 4] += own[v] * own[v];
    doubles all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    double squared = 0.0;
    for (int k = 0; k < WIDE; k++) squared += all[k];
    int finite = squared <= DBL_MAX;
    double factor = finite ? clip_factor(chain, squared, items, 1.0) : 0.0;
    for (int64_t v = 0; finite && v < count; v++) total[v] += factor * own[v];
    memset(own, 0, (size_t)count * sizeof(doubles));
    return !finite;
}

/* A block of items, of which the first may belong to a unit that is open. `begun` is the first item of that unit. */
static int64_t add_units(const Chain *chain, const Places *at, const Batch *batch, int64_t start, int count,
                         const Buffers *b, int64_t *begun) {
    int64_t zeroed = 0;
    for (int64_t v = 0; v < at->all_outward; v++)
        for (int part = 0; part < LANES / WIDE; part++)
            ((doubles *)(b->weighted + v * LANES))[part] = widen(b->outward + v, part);
    for (int lane = 0; lane < count;) {
        int first = lane;
        int64_t group = batch->groups[row_of(batch, start + lane)], end;
        while (lane < count && batch->groups[row_of(batch, start + lane)] == group) lane++;
        for (int64_t l = 0; l < chain->layers; l++)
            add_products(b->unit + at->sums[l], b->weighted + at->outward[l] * LANES, b->rows + at->rows[l],
                         chain->widths[l + 1], at->strides[l], first, lane);
        end = start + lane;
        if (end < batch->items && batch->groups[row_of(batch, end)] == group) break;
        zeroed += finish_unit(chain, at, (double)(end - *begun), b);
        *begun = end;
    }
    return zeroed;
}

/* Add the sum of a part to that of all, and begin anew. */
static void finish_part(const Places *at, const Buffers *b) {
    doubles *whole = (doubles *)b->whole, *total = (doubles *)b->total;
    for (int64_t v = 0; v < at->all_sums / WIDE; v++) whole[v] += total[v];
    memset(total, 0, (size_t)at->all_sums * sizeof(double));
}

/* Whether every group's items are neighbours. */
static int is_in_order(const Batch *batch) {
    if (!batch->groups) return 1;
    for (int64_t k = 1; k < batch->items; k++)
        if (batch->groups[row_of(batch, k)] < batch->groups[row_of(batch, k - 1)]) return 0;
    return 1;
}

/* ---- what is called from outside ---- */

static void find_places(const Chain *chain, Places *at) {
    memset(at, 0, sizeof *at);
    for (int64_t l = 0; l < chain->layers; l++) {
        int64_t in = chain->widths[l], out = chain->widths[l + 1], stride = (in + 1 + WIDE - 1) / WIDE * WIDE;
        at->values[l] = at->all_values, at->all_values += in;
        at->outward[l] = at->all_outward, at->all_outward += out;
        at->rows[l] = at->all_rows, at->all_rows += LANES * stride;
        at->sums[l] = at->all_sums, at->all_sums += out * stride;
        at->parameters[l] = at->all_parameters, at->all_parameters += (in + 1) * out;
        at->strides[l] = stride;
    }
}

static int is_valid(const Chain *chain) {
    if (chain->layers < 1 || chain->layers > MOST_LAYERS) return 0;
    if (chain->loss < CROSS_ENTROPY || chain->loss > HUBER) return 0;
    for (int64_t l = 0; l < chain->layers; l++)
        if (l && (chain->functions[l] < RELU || chain->functions[l] > SIGMOID)) return 0;
    return 1;
}

/* Bytes of scratch memory that a chain needs. */
int64_t wholegrain_scratch(const Chain *chain) {
    Places at;
    find_places(chain, &at);
    int64_t vectors = at.all_values + at.all_outward + chain->widths[chain->layers];
    return 64 + (int64_t)sizeof(floats) * vectors +
           (int64_t)sizeof(double) * (at.all_rows + LANES * at.all_outward + 3 * at.all_sums);
}

/* The clipped sum of a batch at these parameters, in their order, in `sum`; and how many units were left out. */
int wholegrain_clipped_sum(const Chain *chain, const float *parameters, const Batch *batch, void *scratch, double *sum,
                           int64_t *zeroed) {
    Places at;
    Buffers b;
    if (!is_valid(chain)) return BAD_CHAIN;
    if (!is_in_order(batch)) return NOT_IN_ORDER;
    find_places(chain, &at);
    b.values = (floats *)(((uintptr_t)scratch + 63) / 64 * 64);
    b.outward = b.values + at.all_values;
    b.rows = (double *)(b.outward + at.all_outward + chain->widths[chain->layers]);
    b.weighted = b.rows + at.all_rows;
    b.unit = b.weighted + LANES * at.all_outward;
    b.total = b.unit + at.all_sums;
    b.whole = b.total + at.all_sums;
    memset(b.rows, 0, (size_t)at.all_rows * sizeof(double));
    memset(b.unit, 0, (size_t)(3 * at.all_sums) * sizeof(double));
    int64_t begun = 0;
    *zeroed = 0;
    for (int64_t start = 0; start < batch->items; start += LANES) {
        int count = batch->items - start < LANES ? (int)(batch->items - start) : LANES;
        int failed = pass(chain, &at, parameters, batch, start, count, &b);
        if (failed) return failed;
        lay_out_rows(chain, &at, &b);
        *zeroed += batch->groups ? add_units(chain, &at, batch, start, count, &b, &begun)
                                 : add_items(chain, &at, batch, start, count, &b);
        if ((start + LANES) % PART == 0 || start + LANES >= batch->items) finish_part(&at, &b);
    }
    for (int64_t l = 0; l < chain->layers; l++) {
        int64_t in = chain->widths[l], out = chain->widths[l + 1];
        double *own = sum + at.parameters[l];
        const double *found = b.whole + at.sums[l];
        for (int64_t o = 0; o < out; o++) {
            memcpy(own + o * in, found + o * at.strides[l], (size_t)in * sizeof(double));
            own[out * in + o] = found[o * at.strides[l] + in];
        }
    }
    return DONE;
}

int wholegrain_try_clipped_chain(void) {
    static char scratch[1 << 16];
    static const int64_t groups[17] = {0, 1, 1}, targets[17] = {0, 1, 2};
    float parameters[13 * 4 + 5 * 3], inputs[17 * 12];
    double sum[13 * 4 + 5 * 3];
    int64_t zeroed;
    for (int function = RELU; function <= SIGMOID; function++) {
        Chain chain = {2, CROSS_ENTROPY, {12, 4, 3}, {NO_FUNCTION, function}, 1.0, 1};
        Batch batch = {inputs, targets, function == RELU ? NULL : groups, NULL, NULL, function == RELU ? 17 : 3};
        for (int k = 0; k < 13 * 4 + 5 * 3; k++) parameters[k] = (float)(k % 7) / 8;
        for (int k = 0; k < 17 * 12; k++) inputs[k] = (float)(k % 5) / 4;
        if (wholegrain_scratch(&chain) > (int64_t)sizeof scratch) return 1;
        if (wholegrain_clipped_sum(&chain, parameters, &batch, scratch, sum, &zeroed) || zeroed) return 1;
    }
    return 0;
}
