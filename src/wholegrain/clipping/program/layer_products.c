/* What the rules of layers multiply, for models of any kind (gradients/products.py calls it).
 *
 * Every element of a product is the one fused sum that products.h defines. Everything else is computed unit by unit, in an
 * order that follows from sizes of the layer and of that unit alone. So what comes out for a row, or a unit, is a function
 * of its own values and the parameters, wherever it lies and whoever is beside it.
 */
#include "products.h"
#include "vectors.h"

#include <string.h>

#define ROOM (1 << 18) /* floats of a right factor that are laid out at a time: a megabyte */
#define DEEP 1024      /* of k at a time */
#define FEW 16         /* rows for which a right factor is not laid out first */
#define TALL 96        /* rows of a gradient that are made, and squared while they are in the cache */
#define SQUARES 8192   /* squares that are added up in single precision */
#define CHAIN 128      /* products that are added one after the other where positions are multiplied with each other */

static _Thread_local float room[ROOM] __attribute__((aligned(64)));

INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

static int64_t columns_at_once(int64_t depth) { return ROOM / depth / 64 * 64; }

/* c[m, n] = start + a b, whatever its sizes. */
static void multiply(Sizes s, Matrix a, Matrix b, Start start, const float *bias, float *c, int64_t step) {
    if (s.m <= FEW || !s.k) { /* a sum of no products is what it begins with */
        wholegrain_multiply(s, a, b, start, bias, c, step);
        return;
    }
    for (int64_t p = 0; p < s.k; p += DEEP) {
        int64_t depth = least(s.k - p, DEEP), wide = columns_at_once(depth);
        Matrix left = {a.values + p * a.column, a.row, a.column};
        for (int64_t j = 0; j < s.n; j += wide) {
            Sizes own = {s.m, least(s.n - j, wide), depth};
            wholegrain_pack(depth, own.n, (Matrix){b.values + p * b.row + j * b.column, b.row, b.column}, room);
            wholegrain_multiply_packed(own, left, room, p ? FROM_ITSELF : start, bias ? bias + j : NULL, c + j, step);
        }
    }
}

/* Element (i, j) of a factor at i * row + j * column, one of which is 1. `start`: 0, a bias [n], or what c holds. */
void wholegrain_layer_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column,
                              const float *b, int64_t b_row, int64_t b_column, int64_t start, const float *bias,
                              float *c, int64_t step) {
    multiply((Sizes){m, n, k}, (Matrix){a, a_row, a_column}, (Matrix){b, b_row, b_column}, (Start)start, bias, c, step);
}

/* ---- sums of squares ---- */

INLINE double sum_lanes(floats x) {
    double total = 0.0;
    for (int l = 0; l < LANES; l++) total += (double)x[l];
    return total;
}

/* Of up to SQUARES numbers: each lane of four vectors adds up its own. */
static double squares_of_block(const float *x, int64_t count) {
    floats sums[4] = {{0}, {0}, {0}, {0}}, last[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int v = 0; v < 4; v++) {
            floats y = *(const loose_floats *)(x + i + v * LANES);
            sums[v] = multiply_add(y, y, sums[v]);
        }
    memcpy(last, x + i, (size_t)(count - i) * sizeof(float));
    for (int v = 0; v < 4; v++) sums[v] = multiply_add(last[v], last[v], sums[v]);
    return (sum_lanes(sums[0]) + sum_lanes(sums[1])) + (sum_lanes(sums[2]) + sum_lanes(sums[3]));
}

static double squares_of(const float *x, int64_t count) {
    double total = 0.0;
    for (int64_t i = 0; i < count; i += SQUARES) total += squares_of_block(x + i, least(count - i, SQUARES));
    return total;
}

/* ---- gradients of units ---- */

/* Rows [item, position, value]: those of an item begin `item` after those of the one before it. */
typedef struct {
    const float *values;
    int64_t item, position, width;
} Factor;

/* Of the next item's factors, what is asked for with rows `i` and on of this one's gradient: the right factor with the
 * first rows, and the left one, in as many parts, with the others. */
static Soon find_soon(int64_t positions, Factor g, Factor a, int64_t i) {
    if (!a.values) return (Soon){NULL, 0, 0, 0};
    if (!i) return (Soon){a.values, positions, a.width, a.position};
    int64_t parts = (g.width - 1) / TALL, part = i / TALL - 1, from = positions * part / parts;
    return (Soon){g.values + from * g.position, positions * (part + 1) / parts - from, g.width, g.position};
}

/* One item's gradient of a weight, added to what its unit has; g and a are its factors, and the next item's. Of the last item, the sum of squares of the result. */
static double add_item(int64_t positions, const Factor g[2], const Factor a[2], float *formed, int64_t first,
                       int64_t last) {
    Sizes whole = {g->width, a->width, positions};
    Start start = first ? FROM_ZERO : FROM_ITSELF;
    Matrix left = {g->values, 1, g->position}, right = {a->values, a->position, 1};
    if (positions > DEEP || a->width > columns_at_once(positions)) {
        multiply(whole, left, right, start, NULL, formed, a->width);
        return last ? squares_of(formed, g->width * a->width) : 0.0;
    }
    double total = 0.0;
    wholegrain_pack(positions, a->width, right, room);
    for (int64_t i = 0; i < g->width; i += TALL) {
        Sizes own = {least(g->width - i, TALL), a->width, positions};
        float *rows = formed + i * a->width;
        Matrix columns = {g->values + i, 1, g->position};
        Soon soon = find_soon(positions, g[1], a[1], i);
        wholegrain_multiply_before(own, columns, room, start, NULL, rows, a->width, soon);
        if (last) total += squares_of(rows, own.m * a->width);
    }
    return total;
}

/* Σ over positions of g, added to what a unit has; four rows at a time, one after the other. */
static void add_rows(int64_t positions, Factor g, float *sum, int first) {
    if (first) memset(sum, 0, (size_t)g.width * sizeof(float));
    int64_t p = 0;
    for (; p + 4 <= positions; p += 4) {
        const float *a = g.values + p * g.position, *b = a + g.position, *c = b + g.position, *d = c + g.position;
        for (int64_t j = 0; j < g.width; j++) sum[j] = (((sum[j] + a[j]) + b[j]) + c[j]) + d[j];
    }
    for (; p < positions; p++)
        for (int64_t j = 0; j < g.width; j++) sum[j] += g.values[p * g.position + j];
}

/* Rows of item number `item`, of so many; of none beyond them. */
INLINE Factor of_item(const Factor *rows, int64_t item, int64_t items) {
    Factor own = *rows;
    own.values = item < items ? own.values + item * own.item : NULL;
    return own;
}

/* Σ over a unit's items and positions of g ⊗ a: formed [unit, g.width, a.width]; adds the squared norms to `squares`.
 * Where there is a `bias` [unit, g.width], also the sums of g, and `times` their squared norms: each item's while its rows
 * are in the cache. */
void wholegrain_form_units(int64_t units, int64_t size, int64_t positions, const Factor *g, const Factor *a,
                           float *formed, float *bias, double times, double *squares) {
    for (int64_t i = 0, items = units * size; i < items; i++) {
        int64_t unit = i / size, first = i % size == 0, last = i % size == size - 1;
        Factor own[] = {of_item(g, i, items), of_item(g, i + 1, items)};
        Factor other[] = {of_item(a, i, items), of_item(a, i + 1, items)};
        squares[unit] += add_item(positions, own, other, formed + unit * g->width * a->width, first, last);
        if (!bias) continue;
        float *sum = bias + unit * g->width;
        add_rows(positions, *own, sum, first);
        if (last) squares[unit] += times * squares_of(sum, g->width);
    }
}

/* ---- products of positions ---- */

/* A unit's rows one after the other, whatever order items and positions have. */
static void gather(int64_t size, int64_t positions, Factor rows, float *to) {
    for (int64_t k = 0; k < size; k++)
        for (int64_t p = 0; p < positions; p++, to += rows.width)
            memcpy(to, rows.values + k * rows.item + p * rows.position, (size_t)rows.width * sizeof(float));
}

/* Adds to pairs [count, count] the products of rows [count, width] with each other: on and below the diagonal. Those of
 * CHAIN values are added up by themselves first. */
static void add_pairs(int64_t count, int64_t width, const float *rows, float *pairs, float *part) {
    int64_t tall = least(count, TALL / 2);
    for (int64_t p = 0; p < width; p += CHAIN) {
        int64_t depth = least(width - p, CHAIN), laid = least(count, columns_at_once(depth));
        for (int64_t j = 0; j < count; j += laid) {
            wholegrain_pack(depth, least(count - j, laid), columns_of(rows + j * width + p, width), room);
            for (int64_t i = j - j % tall; i < count; i += tall) {
                int64_t high = least(count - i, tall), wide = least(least(i + high, count) - j, laid);
                Sizes own = {high, wide, depth};
                wholegrain_multiply_packed(own, rows_of(rows + i * width + p, width), room, FROM_ZERO, NULL, part, wide);
                for (int64_t r = 0; r < high; r++)
                    for (int64_t c = 0; c < wide; c++) pairs[(i + r) * count + j + c] += part[r * wide + c];
            }
        }
    }
}

/* Σ over pairs of positions of (g·g')(Σ a·a' + more), by the half of them and the diagonal, in double precision. */
static double sum_pairs(int64_t count, const float *pairs, const float *seen) {
    double total = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double sums[8] = {0};
        const float *x = pairs + i * count, *y = seen + i * count;
        for (int64_t j = 0; j < i; j++) sums[j % 8] += (double)x[j] * (double)y[j];
        double half = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
        total += 2.0 * half + (double)x[i] * (double)y[i];
    }
    return total;
}

/* Squared norms of Σ g ⊗ a over positions, for one g and `inwards` factors a, and `more` inputs that are 1. Also the
 * products of each position with itself, of g and of all a: [unit, size · positions] each. `space` has room for
 * n² + n² + TALL · n + n · width floats, n being size · positions, and width that of the widest factor. */
void wholegrain_pair_units(int64_t units, int64_t size, int64_t positions, const Factor *g, const Factor *a,
                           int64_t inwards, float more, double *squares, float *own, float *others, float *space) {
    int64_t count = size * positions;
    float *pairs = space, *seen = pairs + count * count, *part = seen + count * count, *rows = part + TALL * count;
    for (int64_t u = 0; u < units; u++) {
        memset(pairs, 0, (size_t)(2 * count * count) * sizeof(float));
        for (int64_t f = -1; f < inwards; f++) {
            Factor factor = f < 0 ? *g : a[f];
            factor.values += u * size * factor.item;
            gather(size, positions, factor, rows);
            add_pairs(count, factor.width, rows, f < 0 ? pairs : seen, part);
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j <= i; j++) seen[i * count + j] += more;
        squares[u] = sum_pairs(count, pairs, seen);
        for (int64_t i = 0; i < count; i++) {
            own[u * count + i] = pairs[i * count + i];
            others[u * count + i] = seen[i * count + i];
        }
    }
}
