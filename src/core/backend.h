/* What a back end fills in. The core knows no back end by name; src/backends.c lists those of the build.
 *
 * A back end reports failures through dsri_fail() on the context it was opened for, so that the text names the cause.
 */
#ifndef DSRI_BACKEND_H
#define DSRI_BACKEND_H

#include "core/encoder_internal.h"

enum { DSRI_MAX_LAUNCHES = 8 };

/* An appended command. Lives in the encoder's arena until the encoder is reset. */
typedef struct dsri_command {
    struct dsri_command *next_in_wave;
    dsri_op op;
    uint32_t n_rows;
    const void *plan; /* 64-byte aligned */
    size_t plan_bytes;

    /* Hazards. Range sets are normalized (core/ranges.h). */
    const dsr_range *reads;
    const dsr_range *writes;
    const uint32_t *depends_on; /* direct dependencies, ascending */
    const uint64_t *ancestors;  /* one bit per earlier command: whether this one waits for it, directly or not */
    uint32_t n_reads;
    uint32_t n_writes;
    uint32_t n_depends_on;
    uint32_t index;
    uint32_t wave;

    /* Filled by the back end's prepare. Launches run in order. */
    const void *kernel;
    const char *const *kernel_names; /* one per launch, live as long as the context */
    uint32_t n_launches;
    uint32_t grid[DSRI_MAX_LAUNCHES]; /* tasks or thread blocks of each launch */
    uint64_t backend_value;           /* the back end's own */
} dsri_command;

/* Commands without conflicts among them; a conflicting command is in a later wave. */
typedef struct dsri_wave {
    dsri_command *first;
    dsri_command *last;
    uint32_t n_commands;
} dsri_wave;

typedef struct dsri_backend {
    dsr_device_kind kind;
    const char *name; /* such as "cpu" */

    uint32_t (*device_count)(void);
    /* Checks the fields of desc that are the back end's, sets the context's isa and n_threads, gives its own object. */
    dsr_status (*open)(dsr_context *context, const dsr_context_desc *desc, void **device);
    /* In a child of a fork the threads and the driver state of the parent are gone: only memory is released then. */
    void (*close)(void *device, int is_forked);

    /* Zeroed, 64-byte aligned memory on the device. */
    dsr_status (*memory_allocate)(void *device, size_t size_bytes, void **memory);
    /* Waits for work in flight that may use the memory. */
    void (*memory_release)(void *device, void *memory, size_t size_bytes, int is_forked);
    /* Both are complete on return and ordered after work in flight. */
    dsr_status (*memory_write)(void *device, void *destination, const void *source, size_t size_bytes);
    dsr_status (*memory_read)(void *device, void *destination, const void *source, size_t size_bytes);

    /* Names of the kernels this context chooses from, null past the end. */
    const char *(*kernel_name)(void *device, uint32_t index);
    /* Whether callers may register C functions as kernels. */
    int takes_host_kernels;
    /* Takes device code as a kernel; desc is checked but for what the code itself says. Null: the back end runs none.
     */
    dsr_status (*device_kernel_load)(void *device, const dsr_device_kernel_desc *desc, void **kernel);
    void (*device_kernel_unload)(void *device, void *kernel, int is_forked);

    /* Per-encoder state. Null functions: the back end keeps none. */
    dsr_status (*encoder_open)(void *device, void **encoder_state);
    void (*encoder_close)(void *device, void *encoder_state, int is_forked);
    void (*encoder_reset)(void *device, void *encoder_state);
    /* Null: the back end has no streams. */
    dsr_status (*encoder_set_stream)(void *device, void *encoder_state, void *stream);

    /* Chooses the kernel of a command and fills its last six fields; all others are set and final. Nothing of the
     * append can fail after it. DSR_ERR_UNSUPPORTED_KERNEL if there is none. */
    dsr_status (*prepare)(void *device, void *encoder_state, dsri_command *command);
    /* Submits of one encoder run one after another: a replay need not wait for the run before. */
    int runs_in_order;
    /* Runs the waves in order. May return before they are done. On failure nothing of it is left in flight. */
    dsr_status (*submit)(void *device, void *encoder_state, const dsri_wave *waves, uint32_t n_waves);
    /* Waits for the last submit of this encoder. Null: submit returns when the work is done. */
    dsr_status (*wait)(void *device, void *encoder_state);
} dsri_backend;

/* The back end of a device kind, null if it is not in this build. In src/backends.c. */
const dsri_backend *dsri_find_backend(dsr_device_kind kind);

#endif
