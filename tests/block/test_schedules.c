/* A few random schedules on short streams. */
#include "schedules.h"

int main(void)
{
#ifdef DSR_TEST_EMULATED
    const schedule_sizes sizes = {.n_schedules = 9, .longest_stream = 30, .n_tokens = 25, .n_scalar_tokens = 20};
#else
    const schedule_sizes sizes = {.n_schedules = 24, .longest_stream = 280, .n_tokens = 300, .n_scalar_tokens = 16};
#endif
    return schedules_main(&sizes);
}
