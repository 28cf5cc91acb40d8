/* A batch and its units, which are clipped each as one: an item, or neighbouring items of one subject. */
#ifndef WHOLEGRAIN_UNITS_H
#define WHOLEGRAIN_UNITS_H

#include <stdint.h>

#define PART (1 << 15) /* items whose sums are added up by themselves, so that rounding does not grow with n squared */

/* Item k of the sum is row `order[k]`. Neighbours of one group are a unit; without groups each item is one. */
typedef struct {
    const void *inputs, *targets;
    const int64_t *groups; /* [row] or NULL */
    const int64_t *order;  /* [item] or NULL: as they lie */
    const double *shares;  /* [row] or NULL: what an item's clipped gradient is multiplied by, where it is a unit */
    int64_t items;
} Batch;

/* How units are clipped. */
typedef struct {
    double norm;      /* infinite where nothing is clipped */
    int64_t averages; /* whether a unit's gradient is the mean over its items */
} Clip;

static inline int64_t row_of(const Batch *batch, int64_t item) { return batch->order ? batch->order[item] : item; }

/* Whether two items of the sum belong to one unit. */
static inline int are_one(const Batch *batch, int64_t item, int64_t other) {
    return batch->groups && batch->groups[row_of(batch, item)] == batch->groups[row_of(batch, other)];
}

/* Whether every group's items are neighbours. */
int wholegrain_is_in_order(const Batch *batch);

/* Clip a unit's gradient, the sum over so many items, and add it to `total`; both have `count` numbers, a multiple of
 * LANES. Returns whether it was left out, because it was not finite. */
int64_t wholegrain_add_unit(const Clip *clip, const float *unit, int64_t count, double items, double share,
                            double *total);

#endif
