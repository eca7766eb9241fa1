/* Finds out, without a system call, that the process was forked. */
#ifndef DSRI_FORK_GUARD_H
#define DSRI_FORK_GUARD_H

#include <stdint.h>

/* Forks between the process that installed the guard and this one. Installs the guard on the first call. */
uint32_t dsri_fork_count(void);

#endif
