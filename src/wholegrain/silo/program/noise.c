/* Normal noise from a counter: value k of a stream is a function of the stream's key and of k.
 *
 * Two words make two normals (Box and Muller), which take their places. All arithmetic is in single precision, each
 * operation rounded by itself and none fused, so that silo/counter_noise.py gives the same bits in numpy, and every
 * processor does.
 */
#include "philox.h"
#include "try.h"

typedef int32_t integers __attribute__((vector_size(4 * LANES), may_alias));

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
