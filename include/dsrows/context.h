/* Contexts, buffers and views.
 *
 * A context is a device with its threads, allocator, log callback and last error. A handle is used by one thread at a
 * time; different contexts are independent. Every function that returns dsr_status leaves its out parameters alone on
 * failure; every destroy function takes null. */
#ifndef DSROWS_CONTEXT_H
#define DSROWS_CONTEXT_H

#include <dsrows/export.h>
#include <dsrows/status.h>
#include <stddef.h>
#include <stdint.h>

DSR_BEGIN_DECLS

typedef struct dsr_context dsr_context;
typedef struct dsr_buffer dsr_buffer;

typedef enum dsr_dtype {
    DSR_DTYPE_F32 = 0,
    DSR_DTYPE_F16 = 1,
    DSR_DTYPE_BF16 = 2,
    DSR_DTYPE_U8 = 3,
    DSR_DTYPE_U16 = 4,
    DSR_DTYPE_U32 = 5,
    DSR_DTYPE_I32 = 6
} dsr_dtype;

/* Bytes of one element; 0 for an unknown dtype. */
DSR_API size_t dsr_dtype_size(dsr_dtype dtype);
/* Lower-case name such as "bf16"; "?" for an unknown dtype. */
DSR_API const char *dsr_dtype_name(dsr_dtype dtype);

typedef enum dsr_device_kind { DSR_DEVICE_CPU = 0, DSR_DEVICE_CUDA = 1 } dsr_device_kind;

/* What a result's bits depend on. DEVICE: only the row's own operands, the same bits on every device and instruction
 * set (docs/numerics.md). ROW: only the row's own operands, on this device and instruction set. */
typedef enum dsr_exactness { DSR_EXACT_DEVICE = 0, DSR_EXACT_ROW = 1 } dsr_exactness;

/* Instruction sets of CPU kernels. AUTO takes the best one here. The numbers have no order of merit. */
typedef enum dsr_isa {
    DSR_ISA_AUTO = 0,
    DSR_ISA_SCALAR = 1,
    DSR_ISA_AVX2 = 2,   /* AVX2 and FMA */
    DSR_ISA_AVX512 = 3, /* AVX-512 F, BW, DQ and VL */
    DSR_ISA_NEON = 4
} dsr_isa;

/* Name such as "avx512"; "?" for an unknown value. */
DSR_API const char *dsr_isa_name(dsr_isa isa);
/* 1 if this build has kernels for isa and this machine can run them. AUTO and SCALAR are always available. */
DSR_API int dsr_isa_available(dsr_isa isa);

/* Memory for the library's own objects. allocate returns memory aligned to at least `alignment` (a power of two up to
 * 4096) or null. release gets a pointer from allocate and the same size. Both are called from the thread that calls
 * the library, never between submit and completion. */
typedef struct dsr_allocator {
    void *(*allocate)(void *user, size_t size_bytes, size_t alignment);
    void (*release)(void *user, void *memory, size_t size_bytes);
    void *user;
} dsr_allocator;

typedef enum dsr_log_level { DSR_LOG_ERROR = 0, DSR_LOG_WARNING = 1, DSR_LOG_INFO = 2 } dsr_log_level;
typedef void (*dsr_log_fn)(void *user, dsr_log_level level, const char *message);

/* The host's own threads. The runner calls body(body_context, task, worker) once for every task in 0..n_tasks-1, from
 * any threads, and returns when all calls have returned. worker is in 0..n_threads-1 (n_threads of the context), and no
 * two calls that run at the same time may have the same worker. The library sets and restores the floating-point mode
 * inside body. */
typedef void (*dsr_task_fn)(void *body_context, uint32_t task, uint32_t worker);
typedef void (*dsr_parallel_fn)(void *user, uint32_t n_tasks, dsr_task_fn body, void *body_context);

/* Zero means the default in every field but struct_size. */
typedef struct dsr_context_desc {
    uint32_t struct_size;    /* sizeof(dsr_context_desc) */
    dsr_device_kind device;  /* default: CPU */
    uint32_t device_index;   /* CUDA device number; 0 with cuda_context */
    dsr_exactness exactness; /* default: device-exact */
    dsr_isa isa;             /* CPU: force an instruction set. AUTO: the environment variable DSR_ISA if it is set, else
                                the best one here. One that is not available is refused, never replaced. The
                                environment variable DSR_WITHOUT names units not to be used, with commas in between:
                                avx512_bf16, amx_bf16, avx512_vnni, amx_int8. Words that neither variable knows:
                                DSR_ERR_VALUE */
    uint32_t n_threads;      /* CPU: threads that work on a submit, the calling one included; 0 and 1: it alone. At most
                                1024. With `parallel`: the number of workers the runner may use. */
    uint32_t spin_microseconds; /* how long an idle thread of ours spins before it sleeps; 0: the default (50) */
    dsr_allocator allocator;    /* default: the C library's */
    dsr_log_fn log;             /* default: silent */
    void *log_user;
    dsr_parallel_fn parallel; /* default: our own threads */
    void *parallel_user;
    void *cuda_context; /* CUDA: the CUcontext to work in, which must outlive this one; default: the primary context of
                           the device, which the CUDA runtime uses too */
} dsr_context_desc;

#define DSR_CONTEXT_DESC_INIT DSR_STRUCT_INIT(dsr_context_desc)

/* Create a context. desc may be null for all defaults. On failure *context is untouched and the reason is logged to
 * desc->log; dsr_create_error_text() has it too. */
DSR_API dsr_status dsr_context_create(const dsr_context_desc *desc, dsr_context **context);
/* Destroy a context. Its encoders and buffers should have been destroyed before: until they are, its memory stays, and
 * every other call on them gives DSR_ERR_STATE. */
DSR_API void dsr_context_destroy(dsr_context *context);
/* Text of the last failed call on this context or an object of it: op, row, field, what was given, what is needed.
 * Empty if none failed. Valid until the next call on the context. */
DSR_API const char *dsr_context_error_text(const dsr_context *context);
/* Why the calling thread's last dsr_context_create failed. */
DSR_API const char *dsr_create_error_text(void);
/* The instruction set whose kernels a CPU context runs (never AUTO); SCALAR for other devices. */
DSR_API dsr_isa dsr_context_isa(const dsr_context *context);
DSR_API dsr_device_kind dsr_context_device(const dsr_context *context);
DSR_API dsr_exactness dsr_context_exactness(const dsr_context *context);
DSR_API uint32_t dsr_context_n_threads(const dsr_context *context);
/* Number of devices of a kind on this machine: 1 for the CPU; 0 for CUDA without a driver, a device or CUDA in the
 * build. */
DSR_API uint32_t dsr_device_count(dsr_device_kind device);

/* Create a buffer of size_bytes (not 0) on the context's device, aligned to 64 bytes, contents zero. */
DSR_API dsr_status dsr_buffer_create(dsr_context *context, uint64_t size_bytes, dsr_buffer **buffer);
/* Wrap size_bytes of the caller's memory: a host pointer for a CPU context, a device pointer for a CUDA context. The
 * memory stays the caller's, must outlive the buffer, and is neither copied nor freed. */
DSR_API dsr_status dsr_buffer_wrap(dsr_context *context, void *memory, uint64_t size_bytes, dsr_buffer **buffer);
/* Destroy a buffer. No encoder may still hold commands on it that will be submitted or replayed; where the memory is
 * ours, such a run is refused with DSR_ERR_STATE until the encoder is reset. */
DSR_API void dsr_buffer_destroy(dsr_buffer *buffer);
/* Address of the first byte, on the buffer's device. */
DSR_API void *dsr_buffer_data(const dsr_buffer *buffer);
DSR_API uint64_t dsr_buffer_size(const dsr_buffer *buffer);
/* Copy between host memory and a buffer; returns when the copy is done. */
DSR_API dsr_status dsr_buffer_write(dsr_buffer *buffer, uint64_t byte_offset, const void *source, uint64_t size_bytes);
DSR_API dsr_status dsr_buffer_read(const dsr_buffer *buffer, uint64_t byte_offset, void *destination,
                                   uint64_t size_bytes);

/* A typed piece of a buffer. A value: copying it copies no memory, and it holds no reference. A view whose buffer is
 * null stands for "not given". */
typedef struct dsr_view {
    dsr_buffer *buffer;
    uint64_t byte_offset;
    uint64_t byte_length;
    dsr_dtype dtype;
} dsr_view;

/* The whole buffer as elements of dtype. A null buffer gives the null view. */
DSR_API dsr_view dsr_view_whole(dsr_buffer *buffer, dsr_dtype dtype);
/* n_elements of a view from element `first`, same dtype, relative to the view. What does not fit shows as a view that
 * reaches past its buffer, which every op refuses. */
DSR_API dsr_view dsr_view_slice(dsr_view view, uint64_t first, uint64_t n_elements);

DSR_END_DECLS
#endif
