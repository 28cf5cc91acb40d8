/* Words of Philox 4x32 with ten rounds (Salmon et al., SC 2011): word k of counter c is a function of the key, c and k.
 *
 * Words come in groups of 64: counters 16 g to 16 g + 15 make group g, in which word k of counter c is at 16 k + c % 16.
 */
#ifndef WHOLEGRAIN_PHILOX_H
#define WHOLEGRAIN_PHILOX_H

#include "vectors.h"

#define GROUP 64
#define COUNTERS 16
#define ROUNDS 10
#define AT_ONCE 16               /* groups that are made at a time */
#define VECTORS (GROUP / LANES)   /* of a group */
#define HALVES (COUNTERS / LANES) /* vectors for one word of a group's counters */

typedef uint64_t words __attribute__((vector_size(8 * WIDE), may_alias));

/* 128 bits that tell streams apart: two words of the key, and the upper two of the counter. */
typedef struct {
    uint32_t words[4];
} Key;

/* A key as all lanes take it: one pair of words for each round, those of the counter, and what lanes add to it. */
typedef struct {
    words rounds[ROUNDS][2], upper[2], offsets[2];
} Schedule;

INLINE words spread_word(uint64_t value) { return (words){0} + value; }

static inline void schedule(const Key *key, Schedule *made) {
    for (int round = 0; round < ROUNDS; round++) {
        made->rounds[round][0] = spread_word(key->words[0] + (uint32_t)round * 0x9E3779B9u);
        made->rounds[round][1] = spread_word(key->words[1] + (uint32_t)round * 0xBB67AE85u);
    }
    for (int k = 0; k < 2; k++) made->upper[k] = spread_word(key->words[2 + k]);
    for (int lane = 0; lane < LANES; lane++) made->offsets[lane % 2][lane / 2] = (uint64_t)lane;
}

/* The product of the lower 32 bits of x and a constant. */
INLINE words multiply_low(words x, uint32_t by) {
#if defined(__AVX512F__)
    return (words)_mm512_mul_epu32((__m512i)x, (__m512i)spread_word(by));
#elif defined(__AVX2__)
    return (words)_mm256_mul_epu32((__m256i)x, (__m256i)spread_word(by));
#else
    return (x & 0xffffffffu) * spread_word(by);
#endif
}

/* The words of some counters; only the lower 32 bits of each number count. */
INLINE void philox(words counter, const Schedule *key, words *w) {
    w[0] = counter, w[1] = counter >> 32;
    w[2] = key->upper[0], w[3] = key->upper[1];
    for (int round = 0; round < ROUNDS; round++) {
        words a = multiply_low(w[0], 0xD2511F53u), b = multiply_low(w[2], 0xCD9E8D57u);
        w[0] = (b >> 32) ^ (w[1] ^ key->rounds[round][0]);
        w[2] = (a >> 32) ^ (w[3] ^ key->rounds[round][1]);
        w[1] = b;
        w[3] = a;
    }
}

/* The words of some groups. */
static inline void draw_words(const Schedule *key, uint64_t first, int groups, bits *drawn) {
    for (int part = 0; part < groups * HALVES; part++) {
        words even[4], odd[4], start = spread_word(first * COUNTERS + (uint64_t)(part * LANES));
        philox(start + key->offsets[0], key, even);
        philox(start + key->offsets[1], key, odd);
        bits *own = drawn + part / HALVES * VECTORS + part % HALVES;
        for (int k = 0; k < 4; k++) own[k * HALVES] = (bits)((even[k] & 0xffffffffu) | (odd[k] << 32));
    }
}

#endif
