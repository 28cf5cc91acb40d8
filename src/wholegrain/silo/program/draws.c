/* Batches of a simulation: a coin for each item or subject, and who was drawn put in order (data/sampling.py).
 *
 * A coin is 64 bits of two words of Philox, and says yes up to rate * 2^64 - 1. It is that of one place, whoever else there
 * is. Group g of words has coins 32 g to 32 g + 31: words 2 k and 2 k + 1 of counter c are coin 16 k + c % 16.
 */
#include <string.h>

#include "philox.h"
#include "try.h"

#define COINS (GROUP / 2)
#define CHOSEN_FROM 10000 /* from more, numpy chooses in another way */

/* A silo's items by subject: those of subject s are order[starts[s]] and the counts[s] - 1 after it. */
typedef struct {
    const int64_t *order, *owners; /* [place] the item, and its subject */
    const int64_t *starts, *counts; /* [subject] */
    int64_t items, subjects;
} Index;

/* Which of `count` places are drawn, in their order; returns how many. */
static int64_t toss(const Key *key, uint64_t group, uint64_t last, int64_t count, int64_t *chosen) {
    bits drawn[AT_ONCE * VECTORS];
    const uint32_t *word = (const uint32_t *)drawn;
    Schedule made;
    int64_t found = 0;
    schedule(key, &made);
    for (int64_t done = 0; done < count; done += AT_ONCE * COINS, group += AT_ONCE) {
        int64_t left = count - done < AT_ONCE * COINS ? count - done : AT_ONCE * COINS;
        draw_words(&made, group, (int)((left + COINS - 1) / COINS), drawn);
        for (int64_t k = 0; k < left; k++) {
            int64_t low = k / COINS * GROUP + k % COINS / COUNTERS * 2 * COUNTERS + k % COUNTERS;
            chosen[found] = done + k;
            found += ((uint64_t)word[low + COUNTERS] << 32 | word[low]) <= last;
        }
    }
    return found;
}

/* Runs of neighbours of one subject among the places that were drawn: where each begins, and its length. */
static int64_t find_runs(const Index *index, int64_t drawn, const int64_t *chosen, int64_t *first, int64_t *length) {
    int64_t runs = 0;
    for (int64_t k = 0; k < drawn; k++) {
        if (!k || index->owners[chosen[k]] != index->owners[chosen[k - 1]]) first[runs] = k, length[runs++] = 0;
        length[runs - 1]++;
    }
    return runs;
}

/* Runs by their length, those of one length as they are: sorted[k] is the k-th. `tally` has room for items + 2. */
static void sort_runs(int64_t runs, const int64_t *length, int64_t *sorted, int64_t *tally) {
    int64_t most = 0;
    for (int64_t r = 0; r < runs; r++) most = length[r] > most ? length[r] : most;
    memset(tally, 0, (size_t)(most + 2) * sizeof *tally);
    for (int64_t r = 0; r < runs; r++) tally[length[r] + 1]++;
    for (int64_t k = 0; k <= most; k++) tally[k + 1] += tally[k];
    for (int64_t r = 0; r < runs; r++) sorted[tally[length[r]]++] = r;
}

/* The batch of the `drawn` places (of subjects, or of items) in `chosen`, by size of the group, then subject, then item:
 * `items`, and in `groups` the number of each one's subject. `scratch` has room for five times the items, and 2, and begins
 * with `chosen`. Returns how many items there are. */
static int64_t order_batch(const Index *index, int64_t by_subject, int64_t drawn, int64_t *scratch, int64_t *items,
                           int64_t *groups) {
    int64_t room = index->items, *chosen = scratch, *first = chosen + room, *length = first + room;
    int64_t *sorted = length + room, *tally = sorted + room, runs = drawn, total = 0;
    if (by_subject)
        for (int64_t r = 0; r < runs; r++) first[r] = index->starts[chosen[r]], length[r] = index->counts[chosen[r]];
    else
        runs = find_runs(index, drawn, chosen, first, length);
    sort_runs(runs, length, sorted, tally);
    for (int64_t r = 0; r < runs; r++)
        for (int64_t k = 0; k < length[sorted[r]]; k++, total++) {
            int64_t place = first[sorted[r]] + k;
            items[total] = index->order[by_subject ? place : chosen[place]];
            groups[total] = r;
        }
    return total;
}

/* A batch by a coin for each item or subject. */
int64_t wholegrain_draw_batch(const Key *key, uint64_t group, uint64_t last, const Index *index, int64_t by_subject,
                              int64_t *scratch, int64_t *items, int64_t *groups) {
    int64_t count = by_subject ? index->subjects : index->items;
    return order_batch(index, by_subject, toss(key, group, last, count, scratch), scratch, items, groups);
}

/* A generator of numpy, as its interface for C has it (numpy/random/bitgen.h). */
typedef struct {
    void *state;
    uint64_t (*next_uint64)(void *state);
    uint32_t (*next_uint32)(void *state);
    double (*next_double)(void *state);
    uint64_t (*next_raw)(void *state);
} Bits;

/* A number from 0 to `last`, which is below 2^32 - 1, as numpy draws it [Lemire 2019]. */
static uint32_t draw_up_to(const Bits *bits, uint32_t last) {
    uint32_t count = last + 1;
    if (!last) return 0;
    uint64_t product = (uint64_t)bits->next_uint32(bits->state) * count;
    if ((uint32_t)product < count) {
        uint32_t least = (UINT32_MAX - last) % count;
        while ((uint32_t)product < least) product = (uint64_t)bits->next_uint32(bits->state) * count;
    }
    return (uint32_t)(product >> 32);
}

/* A batch of `size` items or subjects, those that numpy's Generator.choice without replacement draws; where it would also
 * shuffle them, its numbers are drawn and not used, because a batch has an order of its own. There are at most CHOSEN_FROM
 * items. */
int64_t wholegrain_choose_batch(const Bits *bits, int64_t size, int64_t shuffled, const Index *index,
                                int64_t by_subject, int64_t *scratch, int64_t *items, int64_t *groups) {
    int64_t count = by_subject ? index->subjects : index->items, drawn = 0;
    uint8_t marks[CHOSEN_FROM];
    memset(marks, 0, (size_t)count);
    for (int64_t last = count - size; last < count; last++) {
        uint32_t found = draw_up_to(bits, (uint32_t)last);
        marks[marks[found] ? last : found] = 1;
    }
    for (int64_t last = shuffled ? size - 1 : 0; last > 0; last--) draw_up_to(bits, (uint32_t)last);
    for (int64_t place = 0; place < count; place++) {
        scratch[drawn] = place;
        drawn += marks[by_subject ? place : index->order[place]];
    }
    return order_batch(index, by_subject, drawn, scratch, items, groups);
}

int wholegrain_try_draws(void) {
    static const int64_t order[4] = {2, 0, 1, 3}, owners[4] = {0, 0, 0, 1}, starts[2] = {0, 3}, counts[2] = {3, 1};
    Index index = {order, owners, starts, counts, 4, 2};
    Key key = {{0, 0, 0, 0}};
    int64_t scratch[5 * 4 + 2], items[4], groups[4];
    for (int by_subject = 0; by_subject < 2; by_subject++)
        if (wholegrain_draw_batch(&key, 0, UINT64_MAX, &index, by_subject, scratch, items, groups) != 4) return 1;
    return items[0] != 3 || groups[3] != 1;
}
