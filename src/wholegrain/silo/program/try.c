/* Whether what was compiled works on this machine: called once, in a process of its own (c_library.py).
 *
 * Functions of this program that another file or Python calls begin with `wholegrain_`; all others are static.
 */
#include "try.h"

#include "vectors.h"

/* Whether products are rounded before they are added to, unless a fused operation is written. */
static int try_arithmetic(void) {
    volatile double a = 1.0 + 0x1p-30, b = 1.0 - 0x1p-30, c = -1.0; /* the product is 1 - 2^-60, which rounds to 1 */
    volatile float x = 1.0f + 0x1p-13f, y = 1.0f - 0x1p-13f, z = -1.0f;
    volatile double in_double = a * b + c;
    volatile float in_single = x * y + z;
    return in_double != 0.0 || in_single != 0.0f;
}

int wholegrain_try(void) {
    return try_arithmetic() || wholegrain_try_noise() || wholegrain_try_draws();
}
