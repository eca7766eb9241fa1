/* The command encoder, capture, and kernels of the caller's own.
 *
 * dsr_encode_* calls validate, plan and append a command; nothing runs before submit. A failed encode leaves the
 * encoder as it was. All scalars and per-row fields are copied at encode time; operand memory is read and written when
 * the commands run. Every command carries the byte ranges it reads and writes; two commands conflict when a range
 * written by one overlaps a range read or written by the other (half-open ranges: ranges that touch do not overlap).
 * Conflicting commands run in the order they were encoded; others may run side by side. */
#ifndef DSROWS_ENCODER_H
#define DSROWS_ENCODER_H

#include <dsrows/context.h>

DSR_BEGIN_DECLS

typedef struct dsr_encoder dsr_encoder;

DSR_API dsr_status dsr_encoder_create(dsr_context *context, dsr_encoder **encoder);
/* Waits for work in flight first. */
DSR_API void dsr_encoder_destroy(dsr_encoder *encoder);
/* Run the commands. On the CPU the calling thread takes part and the work is complete when submit returns; on other
 * devices submit may return earlier. An encoder that was submitted takes no more commands until it is reset. */
DSR_API dsr_status dsr_encoder_submit(dsr_encoder *encoder);
/* Wait until submitted work is complete. Nothing submitted: returns at once. */
DSR_API dsr_status dsr_encoder_wait(dsr_encoder *encoder);
/* Run the same commands again, on whatever their operands then hold. Allowed after submit. Runs after the previous run:
 * on a CUDA device the call does not wait for that one, and what went wrong in it is reported by a later call. */
DSR_API dsr_status dsr_encoder_replay(dsr_encoder *encoder);
/* Forget all commands; keeps the memory, so that a steady state allocates nothing. Waits for work in flight first. */
DSR_API dsr_status dsr_encoder_reset(dsr_encoder *encoder);

/* Run on the caller's stream from now on (a CUstream or cudaStream_t of the context's device); null: on the encoder's
 * own again. Work goes into the stream in order. If the stream is being captured at submit or replay, the kernels
 * become part of the caller's graph; the encoder must then live, and not be reset, as long as that graph is launched.
 * Submit once outside a capture before: that is when memory is allocated. DSR_ERR_UNSUPPORTED_DEVICE on the CPU. */
DSR_API dsr_status dsr_encoder_set_stream(dsr_encoder *encoder, void *stream);

/* ---- capture ---------------------------------------------------------------------------------------------- */

typedef struct dsr_range {
    uint64_t begin; /* address of the first byte, on the device */
    uint64_t end;   /* address past the last byte */
} dsr_range;

/* One command as data. Pointers are valid until the encoder is reset or destroyed. */
typedef struct dsr_command_info {
    uint32_t struct_size;       /* set by the caller: sizeof(dsr_command_info) */
    const char *op;             /* op kind, such as "indexer" */
    const char *const *kernels; /* names of the kernels it runs, in order */
    uint32_t n_kernels;
    const uint32_t *grid; /* tasks (CPU) or thread blocks (CUDA) of each kernel */
    uint32_t n_rows;
    const dsr_range *reads;
    uint32_t n_reads;
    const dsr_range *writes;
    uint32_t n_writes;
    const uint32_t *depends_on; /* earlier commands it waits for, ascending; transitive ones left out */
    uint32_t n_depends_on;
    uint32_t wave; /* commands of one wave may run side by side; waves run in order */
} dsr_command_info;

DSR_API uint32_t dsr_encoder_n_commands(const dsr_encoder *encoder);
DSR_API dsr_status dsr_encoder_command(const dsr_encoder *encoder, uint32_t index, dsr_command_info *info);

typedef enum dsr_capture_format { DSR_CAPTURE_JSON = 0, DSR_CAPTURE_DOT = 1 } dsr_capture_format;
/* Receives consecutive pieces of the text; returns 0 to go on, anything else to stop (DSR_ERR_IO). */
typedef int (*dsr_write_fn)(void *user, const char *text, size_t n_bytes);
/* Write all commands as one JSON document or one Graphviz digraph. Addresses appear as (buffer number, byte offset),
 * buffers numbered by first appearance, so that the text does not change from run to run. */
DSR_API dsr_status dsr_encoder_capture(const dsr_encoder *encoder, dsr_capture_format format, dsr_write_fn write,
                                       void *user);

/* ---- kernels of the caller's own -------------------------------------------------------------------------- */

typedef enum dsr_access { DSR_ACCESS_READ = 1, DSR_ACCESS_WRITE = 2, DSR_ACCESS_READ_WRITE = 3 } dsr_access;

/* A CPU kernel: called once per task in 0..n_tasks-1, from any thread, in the default floating-point mode. views[i] is
 * the address of operand i; params is a copy of the caller's bytes made at encode time, aligned to 16. */
typedef void (*dsr_kernel_fn)(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params);

/* Register a CPU kernel under a name of 1 to 63 characters [A-Za-z0-9_.-]; the name must be free. user is handed to
 * every call and must live as long as the context. DSR_ERR_UNSUPPORTED_DEVICE if the context is not the CPU's. */
DSR_API dsr_status dsr_registry_add_kernel(dsr_context *context, const char *name, dsr_kernel_fn kernel, void *user);

typedef enum dsr_code_kind {
    DSR_CODE_BINARY = 0, /* a cubin or a fatbin, as nvcc -cubin and nvcc -fatbin write them */
    DSR_CODE_PTX = 1,    /* text; the driver compiles it */
    DSR_CODE_CUDA_C = 2  /* text; NVRTC compiles it for the context's device (docs/cuda.md) */
} dsr_code_kind;

/* A CUDA kernel: extern "C" __global__ void entry(...). Its parameters are one pointer for each view of a call, in
 * their order, and then, if the call has params, one struct of params_bytes by value. */
typedef struct dsr_device_kernel_desc {
    uint32_t struct_size; /* sizeof(dsr_device_kernel_desc) */
    const char *name;     /* as of dsr_registry_add_kernel */
    dsr_code_kind kind;
    const void *code;    /* needed during the call only */
    uint64_t code_bytes; /* not 0; at most 1 GiB; of text without a final null character */
    const char *entry;
    uint32_t max_shared_bytes;  /* dynamic shared memory that a call may ask for; 0: 48 KiB */
    const char *const *options; /* CUDA C: options for NVRTC, such as "-I/usr/local/cuda/include" */
    uint32_t n_options;
} dsr_device_kernel_desc;

#define DSR_DEVICE_KERNEL_DESC_INIT DSR_STRUCT_INIT(dsr_device_kernel_desc)

/* Register a kernel in device code; it is loaded, and compiled if need be, here. DSR_ERR_FORMAT if the code cannot be
 * loaded or compiled (the text has the compiler's first words, the context's log all of them), DSR_ERR_NAME if it has
 * no such entry, DSR_ERR_UNSUPPORTED_DEVICE if the context is not a GPU's, or for CUDA C without NVRTC. */
DSR_API dsr_status dsr_registry_add_device_kernel(dsr_context *context, const dsr_device_kernel_desc *desc);

/* Number of kernels of this context, ours for its device, instruction set and exactness first, then the caller's. */
DSR_API uint32_t dsr_registry_n_kernels(const dsr_context *context);
/* Name of a kernel, null past the end. Ours are called dsr_<op>_<dtype>__<isa>. */
DSR_API const char *dsr_registry_kernel_name(const dsr_context *context, uint32_t index);

/* A call of a registered kernel. What is said of the other kind of kernel must be 0. */
typedef struct dsr_kernel_desc {
    uint32_t struct_size; /* sizeof(dsr_kernel_desc) */
    const char *name;     /* a registered name */
    uint32_t n_tasks;     /* C function: not 0; tasks run side by side */
    uint32_t n_views;     /* up to 32 */
    const dsr_view *views;
    const dsr_access *access; /* one per view: the hazard rules rest on it */
    const void *params;
    uint32_t params_bytes; /* up to 4096 */
    uint32_t grid[3];      /* device code: thread blocks, 1 to 2^31 - 1, 65535 and 65535; at most 2^32 - 1 in all */
    uint32_t block[3];     /* device code: threads of a block, 1 to 1024, 1024 and 64; at most 1024 in all */
    uint32_t shared_bytes; /* device code: dynamic shared memory of a block */
} dsr_kernel_desc;

#define DSR_KERNEL_DESC_INIT DSR_STRUCT_INIT(dsr_kernel_desc)

/* Encode a call of a registered kernel, under the same hazard rules as ours. Writable views may not overlap any other
 * view of the call. */
DSR_API dsr_status dsr_encode_kernel(dsr_encoder *encoder, const dsr_kernel_desc *desc);

DSR_END_DECLS
#endif
