/* Normal noise from a counter: value k of a stream is a function of the stream's key and of k.
 *
 * Words are those of Philox 4x32 with ten rounds (Salmon et al., SC 2011), of which two make two normals (Box and
 * Muller). All arithmetic is in single precision, each operation rounded by itself and none fused, so that
 * silo/counter_noise.py gives the same bits in numpy, and every processor does.
 *
 * Values come in groups of 64: counters 16 g to 16 g + 15 make group g, and word k of counter c is place 16 k + c % 16.
 */
#include <string.h>

#include "try.h"
#include "vectors.h"

#define GROUP 64
#define COUNTERS 16
#define ROUNDS 10
#define AT_ONCE 16               /* groups that are made at a time */
#define VECTORS (GROUP / LANES)   /* of a group */
#define HALVES (COUNTERS / LANES) /* vectors for one word of a group's counters */

typedef uint64_t words __attribute__((vector_size(8 * WIDE), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), may_alias));

/* 128 bits that tell streams apart: two words of the key, and the upper two of the counter. */
typedef struct {
    uint32_t words[4];
} Key;

/* A key as all lanes take it: one pair of words for each round, those of the counter, and what lanes add to it. */
typedef struct {
    words rounds[ROUNDS][2], upper[2], offsets[2];
} Schedule;

INLINE words spread_word(uint64_t value) { return (words){0} + value; }

static void schedule(const Key *key, Schedule *made) {
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
static void draw_words(const Schedule *key, uint64_t first, int groups, bits *drawn) {
    for (int part = 0; part < groups * HALVES; part++) {
        words even[4], odd[4], start = spread_word(first * COUNTERS + (uint64_t)(part * LANES));
        philox(start + key->offsets[0], key, even);
        philox(start + key->offsets[1], key, odd);
        bits *own = drawn + part / HALVES * VECTORS + part % HALVES;
        for (int k = 0; k < 4; k++) own[k * HALVES] = (bits)((even[k] & 0xffffffffu) | (odd[k] << 32));
    }
}

/* sqrt(-2 log u), u from 2^-32 to 1 by the upper 31 bits of a word. */
INLINE floats radius(bits word) {
    const int32_t root = 0x3f3504f3; /* the bits of sqrt(1/2), so that the fraction is around 1 */
    floats v = __builtin_convertvector((integers)(word >> 1), floats) + 0.5f; /* 2^31 u */
    integers above = (integers)v - (root + (31 << 23));
    floats e = __builtin_convertvector(above >> 23, floats);
    floats x = (floats)((above & 0x7fffff) + root) - 1.0f, z = x * x;
    floats even = (((z * 7.0376836292e-2f + 1.1676998740e-1f) * z + 1.4249322787e-1f) * z + 2.0000714765e-1f) * z;
    floats odd = ((z * -1.1514610310e-1f - 1.2420140846e-1f) * z - 1.6668057665e-1f) * z - 2.4999993993e-1f;
    floats y = (even + 3.3333331174e-1f + odd * x) * (x * z) + (e * -2.12194440e-4f - 0.5f * z);
    return square_root((x + y + e * 0.693359375f) * -2.0f);
}

/* Two normals: a radius, and a direction by a second word. Its lower 30 bits are an angle of up to an eighth of a turn, and
 * the upper two say in which quarter of a turn it is. */
INLINE void turn_radius(floats r, bits word, floats *first, floats *second) {
    floats x = __builtin_convertvector((integers)(word << 2), floats) * 3.6572952e-10f, z = x * x; /* pi / 4 / 2^31 */
    floats sine = (z * -1.9515295891e-4f + 8.3321608736e-3f) * z - 1.6666654611e-1f;
    sine = sine * z * x + x;
    floats cosine = (z * 2.443315711809948e-5f - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
    cosine = cosine * z * z - 0.5f * z + 1.0f;
    bits swap = (bits)((integers)word >> 31), sign = (word << 1) & 0x80000000u;
    r = (floats)((bits)r ^ sign);
    *first = r * choose(swap, sine, cosine);
    *second = r * choose(swap, cosine, sine);
}

/* Words of some groups become normals times `scale`, in place: two words, two normals. */
static void make_normals(bits *drawn, int groups, float scale) {
    for (int pair = 0; pair < 2 * groups; pair++)
        for (int half = 0; half < HALVES; half++) {
            bits *own = drawn + pair * 2 * HALVES + half;
            floats first, second;
            turn_radius(radius(own[0]) * scale, own[HALVES], &first, &second);
            own[0] = (bits)first, own[HALVES] = (bits)second;
        }
}

static void add_some(const floats *noise, int64_t count, void *sum, int64_t wide) {
    int64_t k = 0;
    if (wide)
        for (; k + LANES <= count; k += LANES)
            for (int part = 0; part < 2; part++)
                *(loose_doubles *)((double *)sum + k + part * WIDE) += widen(noise + k / LANES, part);
    else
        for (; k + LANES <= count; k += LANES) *(loose_floats *)((float *)sum + k) += noise[k / LANES];
    for (; k < count; k++)
        if (wide) ((double *)sum)[k] += ((const float *)noise)[k];
        else ((float *)sum)[k] += ((const float *)noise)[k];
}

/* Add `count` values of noise to a sum in double precision (`wide`) or single, from a group of the stream on. */
void wholegrain_add_noise(const Key *key, uint64_t group, float scale, int64_t count, void *sum, int64_t wide) {
    bits drawn[AT_ONCE * VECTORS]; /* words first and normals later: both are long chains, which overlap with their like */
    Schedule made;
    schedule(key, &made);
    for (int64_t done = 0; done < count; done += AT_ONCE * GROUP, group += AT_ONCE) {
        int64_t left = count - done < AT_ONCE * GROUP ? count - done : AT_ONCE * GROUP;
        int groups = (int)((left + GROUP - 1) / GROUP);
        draw_words(&made, group, groups, drawn);
        make_normals(drawn, groups, scale);
        add_some((const floats *)drawn, left, (char *)sum + done * (wide ? 8 : 4), wide);
    }
}

/* Whether the words are those of Random123's known answers, and all instructions are there. */
int wholegrain_try_noise(void) {
    Key key = {{0, 0, 0, 0}};
    Schedule made;
    bits drawn[VECTORS];
    double sum[GROUP + 1] = {0};
    schedule(&key, &made);
    draw_words(&made, 0, 1, drawn);
    wholegrain_add_noise(&key, 0, 1.0f, GROUP + 1, sum, 1);
    return drawn[0][0] != 0x6627e8d5u || drawn[3 * HALVES][0] != 0x9b00dbd8u || !(sum[GROUP] * sum[GROUP] < 50.0);
}
