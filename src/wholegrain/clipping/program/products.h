/* Products of matrices in single precision, each element of which is defined to the last bit.
 *
 * Element (i, j) of a product is what this gives, whatever the sizes, where it lies and what lies beside it:
 *
 *     c = start;  for (p = 0; p < k; p++) c = fma(a(i, p), b(p, j), c);
 *
 * where `start` is 0, a bias, or what was there before. Where a processor has no fused multiplication, it is a rounded
 * product and a rounded sum, for every element alike. Nothing is read or written beyond the matrices' elements.
 */
#ifndef WHOLEGRAIN_PRODUCTS_H
#define WHOLEGRAIN_PRODUCTS_H

#include <stdint.h>

/* Element (i, j) lies at values[i * row + j * column]; one of both steps is 1. */
typedef struct {
    const float *values;
    int64_t row, column;
} Matrix;

/* What a product is added to. */
typedef enum { FROM_ZERO, FROM_BIAS, FROM_ITSELF } Start;

/* A product's left factor is [m, k], its right one [k, n]. */
typedef struct {
    int64_t m, n, k;
} Sizes;

/* Rows [rows, width], `step` apart, that are read after a product. They are asked for on the way, while the product leaves
 * the way to memory idle: it changes when they arrive, and no number. */
typedef struct {
    const float *values;
    int64_t rows, width, step;
} Soon;

/* Rows one after the other, `step` numbers apart. */
static inline Matrix rows_of(const float *values, int64_t step) { return (Matrix){values, step, 1}; }

/* The transpose of such rows. */
static inline Matrix columns_of(const float *values, int64_t step) { return (Matrix){values, 1, step}; }

/* c[m, n] = start + a b; rows of c are `step` apart. `bias` [n] is read where the start is FROM_BIAS. */
void wholegrain_multiply(Sizes sizes, Matrix a, Matrix b, Start start, const float *bias, float *c, int64_t step);

/* A right factor that many products have, laid out for them: so many floats, at a place that is a multiple of 64. */
int64_t wholegrain_packed_floats(int64_t k, int64_t n);
void wholegrain_pack(int64_t k, int64_t n, Matrix b, float *packed);
void wholegrain_multiply_packed(Sizes sizes, Matrix a, const float *packed, Start start, const float *bias, float *c,
                     int64_t step);
void wholegrain_multiply_before(Sizes sizes, Matrix a, const float *packed, Start start, const float *bias, float *c,
                     int64_t step, Soon soon);

#endif
