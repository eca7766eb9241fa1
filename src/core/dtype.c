/* Element types. */
#include <dsrows/context.h>

static const struct {
    const char *name;
    size_t size_bytes;
} dtypes[] = {
    [DSR_DTYPE_F32] = {"f32", 4}, [DSR_DTYPE_F16] = {"f16", 2}, [DSR_DTYPE_BF16] = {"bf16", 2},
    [DSR_DTYPE_U8] = {"u8", 1},   [DSR_DTYPE_U16] = {"u16", 2}, [DSR_DTYPE_U32] = {"u32", 4},
    [DSR_DTYPE_I32] = {"i32", 4},
};

static int is_known(dsr_dtype dtype)
{
    return (size_t)dtype < sizeof dtypes / sizeof dtypes[0];
}

size_t dsr_dtype_size(dsr_dtype dtype)
{
    return is_known(dtype) ? dtypes[dtype].size_bytes : 0;
}

const char *dsr_dtype_name(dsr_dtype dtype)
{
    return is_known(dtype) ? dtypes[dtype].name : "?";
}
