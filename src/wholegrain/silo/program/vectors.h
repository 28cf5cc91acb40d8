/* Vectors as wide as the processor's registers, and functions of the numbers in them.
 *
 * Every file of this program includes it, so that none compiles where arithmetic is not as it is written: IEEE 754, each
 * operation rounded to its own type, no contraction, no reassociation, no fast mathematics (the checks below, and the
 * flags of c_library.py). Operations on vectors are elementwise: what comes out of a lane depends on that lane alone.
 */
#ifndef WHOLEGRAIN_VECTORS_H
#define WHOLEGRAIN_VECTORS_H

#include <float.h>
#include <stdint.h>

#if !defined(FLT_EVAL_METHOD) || FLT_EVAL_METHOD != 0
#error "operations must be rounded to their own type"
#endif
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || __FINITE_MATH_ONLY__
#error "operations must be done as they are written, whatever flags a compiler adds by itself"
#endif

#ifdef __AVX512F__
#define LANES 16 /* floats in a register */
#define REGISTERS 32
#else
#define LANES 8
#define REGISTERS 16
#endif
#define WIDE (LANES / 2) /* doubles in a register */

typedef float floats __attribute__((vector_size(4 * LANES), may_alias));
typedef float half_floats __attribute__((vector_size(4 * WIDE), may_alias));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), may_alias));
typedef double doubles __attribute__((vector_size(8 * WIDE), may_alias));
/* The same where they need not begin at a multiple of their size. */
typedef float loose_floats __attribute__((vector_size(4 * LANES), may_alias, aligned(4)));
typedef double loose_doubles __attribute__((vector_size(8 * WIDE), may_alias, aligned(8)));
#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX__
#include <immintrin.h>
#endif
#if defined(__FMA__) && !defined(NOTHING_FUSED) /* a test defines it, to see that compilers fuse nothing by themselves */
#define FUSED
#endif

/* a b + c, rounded once where the processor has an instruction for it and twice where it has none: one defined operation
 * for all lanes, chosen when the program is compiled. */
INLINE floats multiply_add(floats a, floats b, floats c) {
#if defined(FUSED) && defined(__AVX512F__)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(FUSED)
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE doubles multiply_add_wide(doubles a, doubles b, doubles c) {
#if defined(FUSED) && defined(__AVX512F__)
    return (doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(FUSED)
    return (doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

INLINE floats choose(bits where, floats yes, floats no) { return (floats)(((bits)yes & where) | ((bits)no & ~where)); }

INLINE floats spread(float value) {
    floats zeros = {0};
    return value - zeros; /* not a sum, which would make 0 of -0 and so cost an addition */
}

INLINE doubles spread_wide(double value) {
    doubles zeros = {0};
    return value - zeros;
}

/* Have a vector loaded once and kept: compilers load it again for each product, and loads are what products wait for. */
#ifdef __AVX__
#define KEEP(x) __asm__("" : "+v"(x))
#else
#define KEEP(x) ((void)0)
#endif

/* The first (0) or second (1) half of a vector in double precision. */
INLINE doubles widen(const floats *x, int part) {
    return __builtin_convertvector(((const half_floats *)x)[part], doubles);
}

INLINE floats square_root(floats x) {
#if defined(__AVX512F__)
    return (floats)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX__)
    return (floats)_mm256_sqrt_ps((__m256)x);
#else
    for (int lane = 0; lane < LANES; lane++) x[lane] = __builtin_sqrtf(x[lane]);
    return x;
#endif
}

INLINE floats magnitude(floats x) { return (floats)((bits)x & 0x7fffffffu); }

INLINE floats power_of_two(bits n) { return (floats)((n + 127u) << 23); }

/* e^x = 2^n (1 + p), for x from -110 to 80; |p| is at most 0.42. */
INLINE floats reduced_exponential(floats x, bits *n) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, which its last bits then are */
    floats shifted = x * 1.44269504f + shift, k = shifted - shift;
    *n = (bits)shifted - (bits)spread(shift);
    floats r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
    floats p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    return p * (r * r) + r;
}

/* e^x for x up to 0. What is not a number stays so; below -110 it is that of -110, which rounds to 0. */
INLINE floats exponential(floats x) {
    bits n;
    x = choose((bits)(x < -110.0f), spread(-110.0f), x);
    floats p = reduced_exponential(x, &n);
    bits half = (bits)((__typeof__(x < x))n >> 1); /* in two steps, because 2^n alone may be too small for a number */
    return (1.0f + p) * power_of_two(half) * power_of_two(n - half);
}

INLINE floats logistic(floats x) {
    floats e = exponential(-magnitude(x));
    return choose((bits)(x < 0.0f), e, spread(1.0f)) / (1.0f + e);
}

INLINE floats hyperbolic_tangent(floats x) {
    bits n;
    floats a = magnitude(x);
    a = choose((bits)(a > 10.0f), spread(10.0f), a);
    floats p = reduced_exponential(a + a, &n), s = power_of_two(n), less_one = s * p + (s - 1.0f);
    floats y = less_one / (less_one + 2.0f);
    return (floats)((bits)y | ((bits)x & 0x80000000u));
}

#endif
