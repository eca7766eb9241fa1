/* Random schedules on streams past every boundary; DSR_SOAK_SECONDS=N goes on for N seconds. */
#include "schedules.h"

int main(void)
{
    const schedule_sizes sizes = {.n_schedules = 210, .longest_stream = 2200, .n_tokens = 900, .n_scalar_tokens = 30};
    return schedules_main(&sizes);
}
