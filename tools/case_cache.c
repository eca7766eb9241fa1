#include "case_cache.h"

/* Values and scales of an entry. */
enum { FP4_ENTRY_BYTES = 68, FP8_ENTRY_BYTES = 584 };

static const case_shape one_i32 = {"I32", 1, {1}, {NULL}};

/* Value of an optional tensor; fallback where the file has none. */
static int32_t read_value(case_file *c, const char *name, const st_tensor **tensor, int32_t fallback)
{
    *tensor = case_optional_tensor(c, name, one_i32);
    return *tensor == NULL ? fallback : case_i32(*tensor);
}

static const case_shape page_table_shape = {"I32", 1, {0}, {"pages"}};

static int has_page_table(case_file *c)
{
    for (uint32_t r = 0; r < c->n_rows; r++) {
        if (case_optional_row_tensor(c, "page_table", r, page_table_shape) != NULL) {
            return 1;
        }
    }
    return 0;
}

case_cache_format case_read_cache_format(case_file *c, uint32_t dim)
{
    const dsr_cache_format packed = dim == DSR_INDEX_DIM ? DSR_FORMAT_FP4 : DSR_FORMAT_FP8;
    const st_tensor *format, *page_size;
    const int32_t number = read_value(c, "kv_format", &format, DSR_FORMAT_BF16);
    const int32_t size = read_value(c, "page_size", &page_size, 0);
    if (number != DSR_FORMAT_BF16 && number != (int32_t)packed) {
        case_bad_value(c, format, "%d given, needed is %d (BF16) or %d (%s)", (int)number, (int)DSR_FORMAT_BF16,
                       (int)packed, packed == DSR_FORMAT_FP4 ? "FP4" : "FP8");
    }
    if (page_size != NULL && (size < 16 || size > 256 || (size & (size - 1)) != 0)) {
        case_bad_value(c, page_size, "%d given, needed is 16, 32, 64, 128 or 256", (int)size);
    }
    if (page_size != NULL && !has_page_table(c)) {
        case_bad_value(c, page_size, "no row has a page_table");
    }
    /* Whether or not a row needs it, in one piece or in pages: then it is looked at again. */
    case_optional_tensor(c, "kv",
                         number == DSR_FORMAT_BF16 ? (case_shape){"BF16", 2, {0, dim}, {"n", NULL}}
                                                   : (case_shape){"U8", 2, {0, 0}, {"n", "bytes"}});
    return (case_cache_format){dim, (dsr_cache_format)number, (uint32_t)size};
}

/* kv.R, or kv where the row has none of its own. */
static const st_tensor *find_entries(case_file *c, uint32_t index, case_shape shape)
{
    const st_tensor *own = case_optional_row_tensor(c, "kv", index, shape);
    const st_tensor *common = own == NULL ? case_optional_tensor(c, "kv", shape) : own;
    return common == NULL ? case_row_tensor(c, "kv", index, shape) : common;
}

static case_cache read_one_piece(case_file *c, uint32_t index, const case_cache_format *f)
{
    const int is_bf16 = f->format == DSR_FORMAT_BF16;
    const uint64_t width = is_bf16 ? f->dim : f->dim == DSR_INDEX_DIM ? FP4_ENTRY_BYTES : FP8_ENTRY_BYTES;
    const case_shape shape = {is_bf16 ? "BF16" : "U8", 2, {0, width}, {"n", NULL}};
    const st_tensor *entries = find_entries(c, index, shape);
    if (entries->shape[0] > UINT32_MAX) {
        case_bad_value(c, entries, "%llu entries", (unsigned long long)entries->shape[0]);
    }
    return (case_cache){entries,
                        entries->shape[0],
                        {.format = f->format, .page_size = (uint32_t)entries->shape[0], .n_bytes = entries->n_bytes}};
}

static case_cache read_pages(case_file *c, uint32_t index, const case_cache_format *f, const st_tensor *table)
{
    const int is_bf16 = f->format == DSR_FORMAT_BF16;
    if (f->page_size == 0) {
        case_bad_value(c, table, "a page table needs tensor page_size, I32 [1]");
        return (case_cache){.tensor = table};
    }
    const uint64_t page_bytes = dsr_cache_page_bytes(f->format, f->dim, f->page_size);
    const case_shape shape = is_bf16 ? (case_shape){"BF16", 2, {0, f->dim}, {"pool pages * page_size", NULL}}
                                     : (case_shape){"U8", 2, {0, page_bytes}, {"pool pages", NULL}};
    const st_tensor *pool = find_entries(c, index, shape);
    if (c->code == CLI_DONE && is_bf16 && pool->shape[0] % f->page_size != 0) {
        case_bad_value(c, pool, "%llu entries given, needed are whole pages of %u", (unsigned long long)pool->shape[0],
                       (unsigned)f->page_size);
    }
    return (case_cache){pool,
                        table->shape[0] * f->page_size,
                        {.format = f->format,
                         .page_size = f->page_size,
                         .n_bytes = pool->n_bytes,
                         .page_table = table->data,
                         .n_pages = table->shape[0]}};
}

case_cache case_read_cache(case_file *c, uint32_t index, const case_cache_format *format)
{
    const st_tensor *table = case_optional_row_tensor(c, "page_table", index, page_table_shape);
    case_cache cache = table == NULL ? read_one_piece(c, index, format) : read_pages(c, index, format, table);
    const st_tensor *kv_len = case_optional_row_tensor(c, "kv_len", index, one_i32);
    if (kv_len == NULL || c->code != CLI_DONE) {
        return cache;
    }
    if (case_i32(kv_len) < 1 || (uint64_t)case_i32(kv_len) > cache.kv_len) {
        case_bad_value(c, kv_len, "%d given, needed is a number from 1 to the %llu entries of the row",
                       (int)case_i32(kv_len), (unsigned long long)cache.kv_len);
    }
    cache.kv_len = (uint64_t)case_i32(kv_len);
    return cache;
}
