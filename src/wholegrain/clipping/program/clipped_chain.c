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
#define BLOCK 16 /* items that are computed at a time */
#define SPAN (BLOCK / LANES) /* vectors for them */
#define ROWS (REGISTERS / 4) /* of weights at a time: with SPAN vectors each, they fill half of the registers */
#define TILE (REGISTERS / 8) /* vectors of features at a time, for four outputs */
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

/* Buffers for one block of items; offsets of layers are in `Places`, in vectors or doubles. */
typedef struct {
    floats *values;   /* the inputs of layers [feature][item] */
    floats *outward;  /* gradients of their outputs [output][item] */
    double *rows;     /* the inputs once more, with a 1 behind them [item][feature] */
    double *weighted; /* gradients of outputs, times a factor where it is known [output][item] */
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

static void apply_all(int64_t function, floats *x, int64_t vectors) {
    if (function == RELU)
        for (int64_t v = 0; v < vectors; v++) x[v] = choose((bits)(x[v] <= 0.0f), spread(0.0f), x[v]);
    else if (function == TANH)
        for (int64_t v = 0; v < vectors; v++) x[v] = hyperbolic_tangent(x[v]);
    else
        for (int64_t v = 0; v < vectors; v++) x[v] = logistic(x[v]);
}

/* From the gradient of y that of x, where y is the function of x. */
INLINE floats reverse(int64_t function, floats g, floats y) {
    if (function == RELU) return choose((bits)(y <= 0.0f), spread(0.0f), g);
    return function == TANH ? g * (1.0f - y * y) : g * ((1.0f - y) * y);
}

/* ---- products ---- */

/* The sums of COUNT rows or columns of weights, `across` numbers apart, times what lies `along` them:
 * sum[k][item] = start[k] + weights[k * across + t * along] * x[t][item], term after term. */
INLINE void add_terms(const float *start, const float *weights, int64_t across, int64_t along, int64_t terms,
                      const floats *x, floats *y, const int count) {
    floats sum[8][SPAN];
    for (int k = 0; k < count; k++)
        for (int v = 0; v < SPAN; v++) sum[k][v] = spread(start ? start[k] : 0.0f);
    for (int64_t t = 0; t < terms; t++) {
        floats own[SPAN];
        for (int v = 0; v < SPAN; v++) {
            own[v] = x[t * SPAN + v];
            KEEP(own[v]);
        }
        for (int k = 0; k < count; k++) {
            floats w = spread(weights[k * across + t * along]);
            for (int v = 0; v < SPAN; v++) sum[k][v] = multiply_add(w, own[v], sum[k][v]);
        }
    }
    for (int k = 0; k < count; k++)
        for (int v = 0; v < SPAN; v++) y[k * SPAN + v] = sum[k][v];
}

/* b + W x, some rows of W at a time. */
static void forward(const float *w, const float *b, const floats *x, floats *y, int64_t in, int64_t out) {
    int64_t o = 0;
    for (; o + ROWS <= out; o += ROWS) add_terms(b + o, w + o * in, in, 1, in, x, y + o * SPAN, ROWS);
    for (; o + 2 <= out; o += 2) add_terms(b + o, w + o * in, in, 1, in, x, y + o * SPAN, 2);
    for (; o < out; o++) add_terms(b + o, w + o * in, in, 1, in, x, y + o * SPAN, 1);
}

/* W' g, some columns of W at a time. */
static void backward(const float *w, const floats *g, floats *x, int64_t in, int64_t out) {
    int64_t j = 0;
    for (; j + ROWS <= in; j += ROWS) add_terms(NULL, w + j, 1, in, out, g, x + j * SPAN, ROWS);
    for (; j < in; j++) add_terms(NULL, w + j, 1, in, out, g, x + j * SPAN, 1);
}

/* What products are added to: items from `first` to before `last`; a sum that `begins` is 0 before them. */
typedef struct {
    int first, last, begins;
} Items;

/* sum[output][feature] += weighted[output][item] * rows[item][feature], item after item: COUNT outputs, VECTORS of
 * features. Where weights are numbers of single precision, products are EXACT, and fused additions give the same bits;
 * other products are rounded before they are added, so that what an item gives does not depend on the sum. */
INLINE void add_tile(double *sum, const double *weighted, const double *rows, int64_t stride, Items of,
                     const int exact, const int count, const int vectors) {
    doubles part[4][TILE];
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vectors; v++)
            part[k][v] = of.begins ? spread_wide(0.0) : *(doubles *)(sum + k * stride + v * WIDE);
    for (int item = of.first; item < of.last; item++) {
        doubles x[TILE];
        for (int v = 0; v < vectors; v++) {
            x[v] = *(const doubles *)(rows + item * stride + v * WIDE);
            KEEP(x[v]);
        }
        for (int k = 0; k < count; k++) {
            doubles w = spread_wide(weighted[k * BLOCK + item]);
            for (int v = 0; v < vectors; v++)
                if (exact) part[k][v] = multiply_add_wide(w, x[v], part[k][v]);
                else part[k][v] += w * x[v];
        }
    }
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vectors; v++) *(doubles *)(sum + k * stride + v * WIDE) = part[k][v];
}

INLINE void add_rows(double *sum, const double *weighted, const double *rows, int64_t stride, Items of,
                     const int exact, const int count) {
    int64_t j = 0;
    for (; j + TILE * WIDE <= stride; j += TILE * WIDE)
        add_tile(sum + j, weighted, rows + j, stride, of, exact, count, TILE);
    for (; j < stride; j += WIDE) add_tile(sum + j, weighted, rows + j, stride, of, exact, count, 1);
}

INLINE void add_products(double *sum, const double *weighted, const double *rows, int64_t out, int64_t stride,
                         Items of, const int exact) {
    int64_t o = 0;
    for (; o + 4 <= out; o += 4) add_rows(sum + o * stride, weighted + o * BLOCK, rows, stride, of, exact, 4);
    for (; o + 2 <= out; o += 2) add_rows(sum + o * stride, weighted + o * BLOCK, rows, stride, of, exact, 2);
    for (; o < out; o++) add_rows(sum + o * stride, weighted + o * BLOCK, rows, stride, of, exact, 1);
}

/* ---- one block of items ---- */

/* Eight rows of `from` become columns of `to`, eight numbers of each; strides are in floats. */
INLINE void turn(const float *const *from, float *to, int64_t stride) {
#ifdef __AVX__
    __m256 r[8], s[8];
    for (int k = 0; k < 8; k++) r[k] = _mm256_loadu_ps(from[k]);
    for (int k = 0; k < 8; k += 2) {
        s[k] = _mm256_unpacklo_ps(r[k], r[k + 1]);
        s[k + 1] = _mm256_unpackhi_ps(r[k], r[k + 1]);
    }
    for (int k = 0; k < 8; k += 4)
        for (int h = 0; h < 2; h++) {
            r[k + 2 * h] = _mm256_shuffle_ps(s[k + h], s[k + 2 + h], 0x44);
            r[k + 2 * h + 1] = _mm256_shuffle_ps(s[k + h], s[k + 2 + h], 0xee);
        }
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_ps(to + k * stride, _mm256_permute2f128_ps(r[k], r[k + 4], 0x20));
        _mm256_storeu_ps(to + (k + 4) * stride, _mm256_permute2f128_ps(r[k], r[k + 4], 0x31));
    }
#else
    for (int row = 0; row < 8; row++)
        for (int k = 0; k < 8; k++) to[k * stride + row] = from[row][k];
#endif
}

/* Inputs side by side [feature][item]; zeros beside those of the last items. */
static void load_inputs(const Batch *batch, int64_t start, int count, int64_t features, float *x) {
    static const float nothing[8] = {0};
    for (int item = 0; item < BLOCK; item += 8) {
        int64_t j = 0;
        for (; j + 8 <= features; j += 8) {
            const float *rows[8];
            for (int k = 0; k < 8; k++)
                rows[k] = item + k < count ? batch->inputs + row_of(batch, start + item + k) * features + j : nothing;
            turn(rows, x + j * BLOCK + item, BLOCK);
        }
        for (; j < features; j++)
            for (int k = item; k < item + 8; k++)
                x[j * BLOCK + k] = k < count ? batch->inputs[row_of(batch, start + k) * features + j] : 0.0f;
    }
}

/* The gradient of each item's own cross-entropy, in place of its outputs. */
static int cross_entropy_gradient(const Batch *batch, int64_t start, int count, int64_t out, floats *z) {
    for (int v = 0; v < SPAN; v++) {
        floats most = z[v], sum = spread(0.0f);
        for (int64_t o = 1; o < out; o++) most = choose((bits)(z[o * SPAN + v] > most), z[o * SPAN + v], most);
        for (int64_t o = 0; o < out; o++) sum += z[o * SPAN + v] = exponential(z[o * SPAN + v] - most);
        for (int64_t o = 0; o < out; o++) z[o * SPAN + v] /= sum;
    }
    for (int item = 0; item < count; item++) {
        int64_t target = ((const int64_t *)batch->targets)[row_of(batch, start + item)];
        if (target < 0 || target >= out) return BAD_TARGET;
        ((float *)z)[target * BLOCK + item] -= 1.0f;
    }
    return DONE;
}

/* The gradient of each item's own loss, in place of its outputs. */
static int outward_gradient(const Chain *chain, const Batch *batch, int64_t start, int count, floats *z) {
    int64_t out = chain->widths[chain->layers];
    if (chain->loss == CROSS_ENTROPY) return cross_entropy_gradient(batch, start, count, out, z);
    floats *y = z + out * SPAN; /* room for targets */
    memset(y, 0, (size_t)(out * SPAN) * sizeof(floats));
    for (int item = 0; item < count; item++) {
        const float *target = (const float *)batch->targets + row_of(batch, start + item) * out;
        for (int64_t o = 0; o < out; o++) ((float *)y)[o * BLOCK + item] = target[o];
    }
    for (int64_t v = 0; v < out * SPAN; v++) {
        floats g = (chain->loss == BINARY_CROSS_ENTROPY ? logistic(z[v]) : z[v]) - y[v];
        if (chain->loss == HUBER) {
            g = choose((bits)(g > 1.0f), spread(1.0f), g);
            g = choose((bits)(g < -1.0f), spread(-1.0f), g);
        }
        z[v] = g / (float)out;
    }
    return DONE;
}

/* Forward and backward: the inputs of all layers, and the gradients of their outputs. */
static int pass(const Chain *chain, const Places *at, const float *parameters, const Batch *batch, int64_t start,
                int count, const Buffers *b) {
    load_inputs(batch, start, count, chain->widths[0], (float *)b->values);
    for (int64_t l = 0; l < chain->layers; l++) {
        int64_t in = chain->widths[l], out = chain->widths[l + 1];
        const float *w = parameters + at->parameters[l];
        int is_last = l + 1 == chain->layers;
        floats *y = is_last ? b->outward + at->outward[l] : b->values + at->values[l + 1];
        forward(w, w + in * out, b->values + at->values[l], y, in, out);
        if (!is_last)
            apply_all(chain->functions[l + 1], y, out * SPAN);
    }
    int failed = outward_gradient(chain, batch, start, count, b->outward + at->outward[chain->layers - 1]);
    for (int64_t l = chain->layers - 1; !failed && l > 0; l--) {
        int64_t in = chain->widths[l], out = chain->widths[l + 1];
        floats *g = b->outward + at->outward[l - 1], *y = b->values + at->values[l];
        backward(parameters + at->parameters[l], b->outward + at->outward[l], g, in, out);
        for (int64_t v = 0; v < in * SPAN; v++) g[v] = reverse(chain->functions[l], g[v], y[v]);
    }
    return failed;
}

/* Eight features of eight items [feature][item] as rows of eight in double precision. */
INLINE void turn_wide(const float *from, double *to, int64_t stride) {
    const float *columns[8];
    float turned[64] __attribute__((aligned(64)));
    for (int k = 0; k < 8; k++) columns[k] = from + k * BLOCK;
    turn(columns, turned, 8);
    for (int k = 0; k < 8; k++)
        for (int j = 0; j < 8; j += WIDE)
            *(doubles *)(to + k * stride + j) = __builtin_convertvector(*(half_floats *)(turned + k * 8 + j), doubles);
}

/* Inputs of layers as rows in double precision, each with a 1 behind it, by which biases are multiplied. */
static void lay_out_rows(const Chain *chain, const Places *at, const Buffers *b) {
    for (int64_t l = 0; l < chain->layers; l++) {
        int64_t in = chain->widths[l], stride = at->strides[l];
        const float *x = (const float *)(b->values + at->values[l]);
        for (int item = 0; item < BLOCK; item += 8) {
            double *rows = b->rows + at->rows[l] + item * stride;
            int64_t j = 0;
            for (; j + 8 <= in; j += 8) turn_wide(x + j * BLOCK + item, rows + j, stride);
            for (; j < in; j++)
                for (int k = 0; k < 8; k++) rows[k * stride + j] = x[j * BLOCK + item + k];
            for (int k = 0; k < 8; k++) rows[k * stride + in] = 1.0;
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

/* The squared norms of gradients, item by item: that of a product of two vectors is the product of theirs. */
static void square_items(const Chain *chain, const Places *at, const Buffers *b, doubles *squared) {
    memset(squared, 0, BLOCK * sizeof(double));
    for (int64_t l = 0; l < chain->layers; l++) {
        const floats *inputs = b->values + at->values[l], *outward = b->outward + at->outward[l];
        for (int part = 0; part < BLOCK / WIDE; part++) {
            doubles x = {0}, g = {0};
            for (int64_t j = 0; j < chain->widths[l]; j++) {
                doubles v = widen(inputs + j * SPAN, part);
                x = multiply_add_wide(v, v, x);
            }
            for (int64_t o = 0; o < chain->widths[l + 1]; o++) {
                doubles v = widen(outward + o * SPAN, part);
                g = multiply_add_wide(v, v, g);
            }
            squared[part] += g * (x + 1.0);
        }
    }
}

/* Nothing of an item whose gradient is not finite may be added: 0 times infinity is not 0. */
static void leave_out(const Chain *chain, const Places *at, int item, const Buffers *b) {
    for (int64_t v = 0; v < at->all_outward / SPAN; v++) ((float *)b->outward)[v * BLOCK + item] = 0.0f;
    for (int64_t l = 0; l < chain->layers; l++)
        memset(b->rows + at->rows[l] + item * at->strides[l], 0, (size_t)at->strides[l] * sizeof(double));
}

/* Gradients of outputs in double precision, times a factor of their item if there are factors. */
static void weigh(const Places *at, const Buffers *b, const doubles *factors) {
    for (int64_t v = 0; v < at->all_outward / SPAN; v++)
        for (int part = 0; part < BLOCK / WIDE; part++) {
            doubles g = widen(b->outward + v * SPAN, part);
            if (factors) g *= factors[part];
            ((doubles *)(b->weighted + v * BLOCK))[part] = g;
        }
}

INLINE void add_layers(const Chain *chain, const Places *at, const Buffers *b, double *sum, Items of,
                       const int exact) {
    for (int64_t l = 0; l < chain->layers; l++)
        add_products(sum + at->sums[l], b->weighted + at->outward[l] * LANES, b->rows + at->rows[l],
                     chain->widths[l + 1], at->strides[l], of, exact);
}

/* Each item is a unit. Returns how many were left out. */
static int64_t add_items(const Chain *chain, const Places *at, const Batch *batch, int64_t start, int count,
                         const Buffers *b) {
    doubles squared[BLOCK / WIDE], factors[BLOCK / WIDE] = {{0}};
    int64_t zeroed = 0;
    square_items(chain, at, b, squared);
    for (int item = 0; item < count; item++) {
        double own = ((double *)squared)[item];
        double share = batch->shares ? batch->shares[row_of(batch, start + item)] : 1.0;
        if (own <= DBL_MAX) {
            ((double *)factors)[item] = clip_factor(chain, own, 1.0, share);
        } else {
            zeroed++;
            leave_out(chain, at, item, b);
        }
    }
    weigh(at, b, factors);
    add_layers(chain, at, b, b->total, (Items){0, count, 0}, 0);
    return zeroed;
}

/* Clip what was summed up of a unit and add it to the total. Returns whether it was left out. */
static int64_t finish_unit(const Chain *chain, const Places *at, double items, const Buffers *b) {
    doubles parts[4] = {{0}, {0}, {0}, {0}}, *own = (doubles *)b->unit, *total = (doubles *)b->total;
    int64_t count = at->all_sums / WIDE, v = 0;
    for (; v + 4 <= count; v += 4)
        for (int k = 0; k < 4; k++) parts[k] = multiply_add_wide(own[v + k], own[v + k], parts[k]);
    for (; v < count; v++) parts[0] = multiply_add_wide(own[v], own[v], parts[0]);
    doubles all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    double squared = 0.0;
    for (int k = 0; k < WIDE; k++) squared += all[k];
    int finite = squared <= DBL_MAX;
    double factor = finite ? clip_factor(chain, squared, items, 1.0) : 0.0;
    for (v = 0; finite && v < count; v++) total[v] += factor * own[v];
    return !finite;
}

/* A block of items, of which the first may belong to a unit that is open. `begun` is the first item of that unit. */
static int64_t add_units(const Chain *chain, const Places *at, const Batch *batch, int64_t start, int count,
                         const Buffers *b, int64_t *begun) {
    int64_t zeroed = 0;
    weigh(at, b, NULL);
    for (int item = 0; item < count;) {
        int first = item;
        int64_t group = batch->groups[row_of(batch, start + item)], end;
        while (item < count && batch->groups[row_of(batch, start + item)] == group) item++;
        add_layers(chain, at, b, b->unit, (Items){first, item, start + first == *begun}, 1);
        end = start + item;
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
        at->values[l] = at->all_values, at->all_values += in * SPAN;
        at->outward[l] = at->all_outward, at->all_outward += out * SPAN;
        at->rows[l] = at->all_rows, at->all_rows += BLOCK * stride;
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
    int64_t vectors = at.all_values + at.all_outward + chain->widths[chain->layers] * SPAN;
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
    b.rows = (double *)(b.outward + at.all_outward + chain->widths[chain->layers] * SPAN);
    b.weighted = b.rows + at.all_rows;
    b.unit = b.weighted + LANES * at.all_outward;
    b.total = b.unit + at.all_sums;
    b.whole = b.total + at.all_sums;
    memset(b.rows, 0, (size_t)at.all_rows * sizeof(double));
    memset(b.unit, 0, (size_t)(3 * at.all_sums) * sizeof(double));
    int64_t begun = 0;
    *zeroed = 0;
    for (int64_t start = 0; start < batch->items; start += BLOCK) {
        int count = batch->items - start < BLOCK ? (int)(batch->items - start) : BLOCK;
        int failed = pass(chain, &at, parameters, batch, start, count, &b);
        if (failed) return failed;
        lay_out_rows(chain, &at, &b);
        *zeroed += batch->groups ? add_units(chain, &at, batch, start, count, &b, &begun)
                                 : add_items(chain, &at, batch, start, count, &b);
        if ((start + BLOCK) % PART == 0 || start + BLOCK >= batch->items) finish_part(&at, &b);
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
