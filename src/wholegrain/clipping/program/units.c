/* Norms, factors and sums of units' gradients, in double precision. */
#include "units.h"

#include <math.h>

#include "vectors.h"

int wholegrain_is_in_order(const Batch *batch) {
    if (!batch->groups) return 1;
    for (int64_t k = 1; k < batch->items; k++)
        if (batch->groups[row_of(batch, k)] < batch->groups[row_of(batch, k - 1)]) return 0;
    return 1;
}

/* Squares of single precision are exact in double precision, and none is too small or too large for it. */
static double squared_norm(const float *unit, int64_t count) {
    doubles parts[4] = {{0}, {0}, {0}, {0}};
    for (int64_t v = 0; v < count / LANES; v++)
        for (int half = 0; half < 2; half++) {
            doubles own = widen((const floats *)unit + v, half);
            parts[2 * (v % 2) + half] += own * own;
        }
    doubles all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    double squared = 0.0;
    for (int k = 0; k < WIDE; k++) squared += all[k];
    return squared;
}

/* What a gradient whose squared norm is known is multiplied by, to be clipped and then counted. */
static double clip_factor(const Clip *clip, double squared, double items, double share) {
    double length = sqrt(squared), factor = share;
    if (clip->averages) length /= items, factor /= items;
    return length > clip->norm ? clip->norm / length * factor : factor;
}

int64_t wholegrain_add_unit(const Clip *clip, const float *unit, int64_t count, double items, double share,
                            double *total) {
    double squared = squared_norm(unit, count);
    if (!(squared <= DBL_MAX)) return 1; /* 0 times infinity is not 0 */
    double factor = clip_factor(clip, squared, items, share);
    for (int64_t v = 0; v < count / LANES; v++)
        for (int half = 0; half < 2; half++)
            ((doubles *)total)[2 * v + half] += factor * widen((const floats *)unit + v, half);
    return 0;
}
