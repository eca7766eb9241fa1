/* Memory that must be there: in tests, and in the command, whose exit status says that this machine cannot do it. */
#ifndef TEST_NEED_MEMORY_H
#define TEST_NEED_MEMORY_H

#include <stdio.h>
#include <stdlib.h>

/* What an allocation gave; null ends the program. */
static inline void *need_memory(void *memory)
{
    enum { NOT_AVAILABLE = 3 }; /* CLI_UNAVAILABLE */
    if (!memory) {
        fputs("not enough memory\n", stderr);
        exit(NOT_AVAILABLE);
    }
    return memory;
}

#endif
