/* A few random schedules on short streams. */
#include "schedules.h"

int main(void)
{
    const schedule_sizes sizes = {.n_schedules = 24, .longest_stream = 280, .n_tokens = 300, .n_scalar_tokens = 16};
    return schedules_main(&sizes);
}
