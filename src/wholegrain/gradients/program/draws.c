/* Batches of a simulation: a coin for each item or subject, and who was drawn put in order (data/sampling.py).
 *
 * A coin is 64 bits of two words of Philox, and says yes up to rate * 2^64 - 1. It is that of one place, whoever else there
 * is. Group g of words has coins 32 g to 32 g + 31: words 2 k and 2 k + 1 of counter c are coin 16 k + c % 16.
 */
#include <string.h>

#include "philox.h"
#include "try.h"

#define COINS (GROUP / 2)

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

/* A batch, by size of the group, then subject, then item: `items`, and in `groups` the number of each one's subject.
 * `scratch` has room for five times the items, and 2. Returns how many items there are. */
int64_t wholegrain_draw_batch(const Key *key, uint64_t group, uint64_t last, const Index *index, int64_t by_subject,
                              int64_t *scratch, int64_t *items, int64_t *groups) {
    int64_t room = index->items, *chosen = scratch, *first = chosen + room, *length = first + room;
    int64_t *sorted = length + room, *tally = sorted + room, runs, total = 0;
    if (by_subject) {
        runs = toss(key, group, last, index->subjects, chosen);
        for (int64_t r = 0; r < runs; r++) first[r] = index->starts[chosen[r]], length[r] = index->counts[chosen[r]];
    } else {
        runs = find_runs(index, toss(key, group, last, room, chosen), chosen, first, length);
    }
    sort_runs(runs, length, sorted, tally);
    for (int64_t r = 0; r < runs; r++)
        for (int64_t k = 0; k < length[sorted[r]]; k++, total++) {
            int64_t place = first[sorted[r]] + k;
            items[total] = index->order[by_subject ? place : chosen[place]];
            groups[total] = r;
        }
    return total;
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
