/* Finds out, without a system call, that the process was forked. */
#ifndef DSRI_FORK_GUARD_H
#define DSRI_FORK_GUARD_H

#include <stdint.h>

/* Forks between the process that installed the guard and this one; 0 before it is installed. */
uint32_t dsri_fork_count(void);
/* Installs the guard, once in a process. Returns whether it is there: without memory it is not. */
int dsri_fork_guard_install(void);

#endif
