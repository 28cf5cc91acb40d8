/* Products of matrices: tiles of the result stay in registers while both factors pass by once.
 *
 * The right factor is laid out in panels of PANEL columns, [panel][k][PANEL], whose last one is filled up with zeros. A
 * tile of up to ROWS rows and a panel's columns begins with what is there, and takes up one column of the left factor
 * and one row of the panel at a time. Sums are kept in single precision, so that to store them after some of k and to
 * go on later changes nothing. Tiles at an edge do the same on a copy.
 */
#include "products.h"

#include <string.h>

#include "try.h"
#include "vectors.h"

#define WIDTH LANES
#if REGISTERS == 32
#define ROWS 14
#define PARTS 7 /* of k, in each of which some of the rows that will be stored are asked for: memory takes few at a time */
#else
#define ROWS 6
#define PARTS 1
#endif
#define PANEL (2 * WIDTH)
#define DEPTH 256 /* of k at a time: so much of a panel stays in the nearest cache */
#define MOVED_DEPTH 48 /* of k, from which on a left factor is laid out anew */
#define APART (DEPTH + LANES) /* floats from one copied row to the next */
#define BLOCK (16 * ROWS) /* rows at a time, which stay in the next one */

INLINE floats load(const float *at) { return *(const loose_floats *)at; }

INLINE void store(float *at, floats x) { *(loose_floats *)at = x; }

/* ---- memory that is asked for early ---- */

#define LINE 64 /* bytes that arrive together */

/* On the way through rows that are read soon: `each` lines at a time. */
typedef struct {
    uintptr_t at, gap;
    int64_t lines, left, rows, each;
} Walk;

/* All of it in so many times. */
static Walk begin_walk(Soon soon, int64_t times) {
    int64_t lines = (soon.width * (int64_t)sizeof(float) + LINE - 1) / LINE, all = lines * soon.rows;
    uintptr_t gap = (uintptr_t)(soon.step * (int64_t)sizeof(float) - lines * LINE);
    return (Walk){(uintptr_t)soon.values, gap, lines, lines, soon.width ? soon.rows : 0, (all + times - 1) / times};
}

INLINE void walk_on(Walk *walk) {
    for (int64_t l = 0; l < walk->each && walk->rows; l++) {
        __builtin_prefetch((const void *)walk->at, 0, 2);
        walk->at += LINE;
        if (!--walk->left) walk->at += walk->gap, walk->left = walk->lines, walk->rows--;
    }
}

/* ---- tiles ---- */

/* A tile [rows, PANEL] of c; `from` is what it begins with (NULL: zeros), in rows `from_step` apart. */
typedef struct {
    float *c;
    const float *from;
    int64_t step, from_step;
    Walk *walk;
} Tile;

/* A panel's rows, `step` apart. */
typedef struct {
    const float *values;
    int64_t step;
} Panel;

INLINE void compute_tile(Tile t, Matrix a, Panel b, int64_t k, const int rows) {
    floats sum[ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        sum[i][0] = t.from ? load(t.from + i * t.from_step) : spread(0.0f);
        sum[i][1] = t.from ? load(t.from + i * t.from_step + WIDTH) : spread(0.0f);
    }
    for (int64_t part = 0, p = 0; part < PARTS; part++) {
        for (int64_t i = part * rows / PARTS; i < (part + 1) * rows / PARTS; i++) {
            __builtin_prefetch(t.c + i * t.step, 1);
            __builtin_prefetch(t.c + i * t.step + WIDTH, 1);
        }
        walk_on(t.walk);
        for (int64_t end = k * (part + 1) / PARTS; p < end; p++) {
            floats left = load(b.values), right = load(b.values + WIDTH);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                floats x = spread(a.values[i * a.row]);
                sum[i][0] = multiply_add(x, left, sum[i][0]);
                sum[i][1] = multiply_add(x, right, sum[i][1]);
            }
            a.values += a.column, b.values += b.step;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        store(t.c + i * t.step, sum[i][0]);
        store(t.c + i * t.step + WIDTH, sum[i][1]);
    }
}

/* One function for each number of rows, and for each of a factor's two ways to lie. */
typedef void (*TileProgram)(Tile t, Matrix a, Panel b, int64_t k);

#define FOR_ROWS(COUNT)                                                     \
    static void along_rows_##COUNT(Tile t, Matrix a, Panel b, int64_t k) {  \
        a.column = 1;                                                       \
        compute_tile(t, a, b, k, COUNT);                                    \
    }                                                                       \
    static void across_rows_##COUNT(Tile t, Matrix a, Panel b, int64_t k) { \
        a.row = 1;                                                          \
        compute_tile(t, a, b, k, COUNT);                                    \
    }
FOR_ROWS(1) FOR_ROWS(2) FOR_ROWS(3) FOR_ROWS(4) FOR_ROWS(5) FOR_ROWS(6)
#if ROWS > 6
FOR_ROWS(7) FOR_ROWS(8) FOR_ROWS(9) FOR_ROWS(10) FOR_ROWS(11) FOR_ROWS(12) FOR_ROWS(13) FOR_ROWS(14)
#endif

static const TileProgram ALONG[] = {
    along_rows_1,  along_rows_2,  along_rows_3, along_rows_4, along_rows_5, along_rows_6,
#if ROWS > 6
    along_rows_7,  along_rows_8,  along_rows_9, along_rows_10, along_rows_11, along_rows_12,
    along_rows_13, along_rows_14,
#endif
};
static const TileProgram ACROSS[] = {
    across_rows_1,  across_rows_2,  across_rows_3, across_rows_4, across_rows_5, across_rows_6,
#if ROWS > 6
    across_rows_7,  across_rows_8,  across_rows_9, across_rows_10, across_rows_11, across_rows_12,
    across_rows_13, across_rows_14,
#endif
};

/* The same for fewer columns than a panel has, on a copy. */
static void compute_edge(TileProgram program, Tile t, Matrix a, Panel b, int64_t k, int64_t rows, int64_t columns) {
    float copy[ROWS * PANEL];
    memset(copy, 0, sizeof copy);
    for (int64_t i = 0; t.from && i < rows; i++)
        memcpy(copy + i * PANEL, t.from + i * t.from_step, (size_t)columns * sizeof(float));
    program((Tile){copy, copy, PANEL, PANEL, t.walk}, a, b, k);
    for (int64_t i = 0; i < rows; i++) memcpy(t.c + i * t.step, copy + i * PANEL, (size_t)columns * sizeof(float));
}

/* Rows of tile number `tile` of so many: of nearly the same height, as few as there can be. */
INLINE int64_t height(int64_t m, int64_t tile) {
    int64_t tiles = (m + ROWS - 1) / ROWS;
    return m / tiles + (tile < m % tiles);
}

/* So many numbers; to copy a number of them that is known takes a few vectors. */
INLINE void copy_few(const float *from, float *to, int64_t count) {
    if (count == ROWS) memcpy(to, from, ROWS * sizeof(float));
    else if (count == ROWS - 1) memcpy(to, from, (ROWS - 1) * sizeof(float));
    else
        for (int64_t r = 0; r < count; r++) to[r] = from[r];
}

/* The rows of a left factor that lie as columns, tile after tile: [tile][k][rows]. They are read as they lie in memory,
 * which then comes ahead by itself. */
static void pack_left(int64_t m, int64_t k, Matrix a, float *to) {
    for (int64_t p = 0; p < k; p++)
        for (int64_t tile = 0, i = 0, rows; i < m; tile++, i += rows) {
            rows = height(m, tile);
            copy_few(a.values + i + p * a.column, to + i * k + p * rows, rows);
        }
}

/* Rows, copied so that they are not a power of two apart: a cache holds few numbers that are. */
static void copy_rows(int64_t m, int64_t k, Matrix a, float *to) {
    for (int64_t i = 0; i < m; i++) memcpy(to + i * APART, a.values + i * a.row, (size_t)k * sizeof(float));
}

/* Up to BLOCK rows and one panel. `packed` is whether the left factor lies as `pack_left` lays it out. */
static void compute_rows(Tile t, Matrix a, int packed, Panel b, int64_t m, int64_t k, int64_t columns) {
    for (int64_t tile = 0, i = 0, rows; i < m; tile++, i += rows) {
        rows = height(m, tile);
        TileProgram program = a.column == 1 ? ALONG[rows - 1] : ACROSS[rows - 1];
        Tile own = {t.c + i * t.step, t.from ? t.from + i * t.from_step : NULL, t.step, t.from_step, t.walk};
        Matrix left = packed ? (Matrix){a.values + i * k, 1, rows} : (Matrix){a.values + i * a.row, a.row, a.column};
        if (columns == PANEL) program(own, left, b, k);
        else compute_edge(program, own, left, b, k, rows, columns);
    }
}

/* ---- panels ---- */

INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

#ifdef __AVX__
/* Eight rows of eight numbers, turned into columns. */
INLINE void transpose(const float *from, int64_t step, float *to) {
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + i * step);
    for (int i = 0; i < 8; i += 2)
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]), s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(s[i + j], s[i + 2 + j], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(s[i + j], s[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * PANEL, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * PANEL, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
#endif

/* Columns of a panel that lie as rows. */
static void turn_columns(int64_t k, int64_t columns, const float *from, int64_t step, float *to) {
    int64_t j = 0;
#ifdef __AVX__
    for (; j + 8 <= columns; j += 8) {
        int64_t p = 0;
        for (; p + 8 <= k; p += 8) transpose(from + j * step + p, step, to + p * PANEL + j);
        for (; p < k; p++)
            for (int64_t c = j; c < j + 8; c++) to[p * PANEL + c] = from[c * step + p];
    }
#endif
    for (; j < columns; j++)
        for (int64_t p = 0; p < k; p++) to[p * PANEL + j] = from[j * step + p];
}

static void pack_panel(int64_t k, int64_t columns, Matrix b, float *to) {
    if (columns < PANEL) memset(to, 0, (size_t)(k * PANEL) * sizeof(float));
    if (b.column != 1) {
        turn_columns(k, columns, b.values, b.column, to);
    } else if (columns == PANEL) {
        for (int64_t p = 0; p < k; p++, to += PANEL) {
            store(to, load(b.values + p * b.row));
            store(to + WIDTH, load(b.values + p * b.row + WIDTH));
        }
    } else {
        for (int64_t p = 0; p < k; p++) memcpy(to + p * PANEL, b.values + p * b.row, (size_t)columns * sizeof(float));
    }
}

int64_t wholegrain_packed_floats(int64_t k, int64_t n) { return (n + PANEL - 1) / PANEL * PANEL * k; }

/* Whole panels of rows, read as they lie in memory. */
static void pack_rows(int64_t k, int64_t panels, Matrix b, float *packed) {
    for (int64_t p = 0; p < k; p++) {
        const float *from = b.values + p * b.row;
        float *to = packed + p * PANEL;
        for (int64_t j = 0; j < panels; j++, from += PANEL, to += k * PANEL) {
            store(to, load(from));
            store(to + WIDTH, load(from + WIDTH));
        }
    }
}

void wholegrain_pack(int64_t k, int64_t n, Matrix b, float *packed) {
    int64_t whole = b.column == 1 ? n / PANEL : 0;
    pack_rows(k, whole, b, packed);
    for (int64_t j = whole * PANEL; j < n; j += PANEL)
        pack_panel(k, least(n - j, PANEL), (Matrix){b.values + j * b.column, b.row, b.column}, packed + j * k);
}

/* ---- products ---- */

/* Where a right factor's panels come from: laid out already, as they lie, or laid out one by one. */
typedef struct {
    const float *packed;
    Matrix b;
    int as_it_lies;
    float *room;
} Panels;

INLINE Panel find_panel(const Panels *from, Sizes whole, int64_t p, int64_t depth, int64_t j) {
    int64_t columns = least(whole.n - j, PANEL);
    if (from->packed) return (Panel){from->packed + j * whole.k + p * PANEL, PANEL};
    const float *start = from->b.values + p * from->b.row + j * from->b.column;
    if (from->as_it_lies && columns == PANEL) return (Panel){start, from->b.row};
    pack_panel(depth, columns, (Matrix){start, from->b.row, from->b.column}, from->room);
    return (Panel){from->room, PANEL};
}

/* What column j of row i begins with at the first part of k. */
INLINE Tile find_start(Start start, const float *bias, float *c, int64_t step, int64_t i, int64_t j, Walk *walk) {
    float *own = c + i * step + j;
    if (start == FROM_ZERO) return (Tile){own, NULL, step, 0, walk};
    if (start == FROM_BIAS) return (Tile){own, bias + j, step, 0, walk};
    return (Tile){own, own, step, step, walk};
}

/* What is read after a block of `rows` rows from row i, and `depth` of k from p: of this product, or after it. */
static Soon find_soon(Sizes s, Matrix a, int64_t i, int64_t rows, int64_t p, int64_t depth, Soon after) {
    int64_t k = p + depth;
    if (k == s.k) i += rows, rows = least(s.m - i, BLOCK), k = 0;
    if (!rows) return after;
    int64_t deep = least(s.k - k, DEPTH);
    const float *values = a.values + i * a.row + k * a.column;
    return a.column == 1 ? (Soon){values, rows, deep, a.row} : (Soon){values, deep, rows, a.column};
}

static void multiply_panels(Sizes s, Matrix a, const Panels *b, Start start, const float *bias, float *c,
                            int64_t step, Soon after) {
    float room[BLOCK * APART] __attribute__((aligned(64)));
    for (int64_t i = 0; i < s.m; i += BLOCK) {
        int64_t rows = least(s.m - i, BLOCK), p = 0;
        do {
            int64_t depth = least(s.k - p, DEPTH);
            int moves = depth > MOVED_DEPTH && s.n > 2 * PANEL, packs = moves && a.column != 1;
            Matrix left = {a.values + i * a.row + p * a.column, a.row, a.column};
            if (packs) pack_left(rows, depth, left, room), left.values = room;
            else if (moves) copy_rows(rows, depth, left, room), left = rows_of(room, APART);
            int64_t tiles = (rows + ROWS - 1) / ROWS * ((s.n + PANEL - 1) / PANEL);
            Walk walk = begin_walk(find_soon(s, a, i, rows, p, depth, after), tiles * PARTS);
            for (int64_t j = 0; j < s.n; j += PANEL) {
                Panel panel = find_panel(b, s, p, depth, j);
                Tile tile = find_start(p ? FROM_ITSELF : start, bias, c, step, i, j, &walk);
                compute_rows(tile, left, packs, panel, rows, depth, least(s.n - j, PANEL));
            }
            p += depth;
        } while (p < s.k);
    }
}

void wholegrain_multiply_before(Sizes sizes, Matrix a, const float *packed, Start start, const float *bias, float *c,
                     int64_t step, Soon soon) {
    Panels panels = {packed, {NULL, 0, 0}, 0, NULL};
    multiply_panels(sizes, a, &panels, start, bias, c, step, soon);
}

void wholegrain_multiply_packed(Sizes sizes, Matrix a, const float *packed, Start start, const float *bias, float *c,
                     int64_t step) {
    wholegrain_multiply_before(sizes, a, packed, start, bias, c, step, (Soon){NULL, 0, 0, 0});
}

void wholegrain_multiply(Sizes sizes, Matrix a, Matrix b, Start start, const float *bias, float *c, int64_t step) {
    float room[DEPTH * PANEL] __attribute__((aligned(64)));
    Panels panels = {NULL, b, b.column == 1 && sizes.m <= 2 * ROWS, room};
    multiply_panels(sizes, a, &panels, start, bias, c, step, (Soon){NULL, 0, 0, 0});
}

int wholegrain_try_products(void) {
    float a[3 * 5], b[5 * 20], c[3 * 20], packed[5 * 64];
    for (int k = 0; k < 3 * 5; k++) a[k] = (float)(k % 4);
    for (int k = 0; k < 5 * 20; k++) b[k] = (float)(k % 3);
    wholegrain_multiply((Sizes){3, 20, 5}, rows_of(a, 5), rows_of(b, 20), FROM_ZERO, NULL, c, 20);
    wholegrain_pack(5, 20, rows_of(b, 20), packed);
    wholegrain_multiply_packed((Sizes){3, 20, 5}, columns_of(a, 3), packed, FROM_ITSELF, NULL, c, 20);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 20; j++)
            for (int p = 0; p < 5; p++) c[i * 20 + j] -= (a[i * 5 + p] + a[p * 3 + i]) * b[p * 20 + j];
    for (int k = 0; k < 3 * 20; k++)
        if (c[k] != 0.0f) return 1;
    return 0;
}
