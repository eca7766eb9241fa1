/* Names and texts of status codes. */
#include <dsrows/status.h>

#include <stddef.h>

typedef struct status_entry {
    dsr_status status;
    const char *name;
    const char *text;
} status_entry;

#define ENTRY(status, text)                                                                                            \
    {                                                                                                                  \
        status, #status, text                                                                                          \
    }

static const status_entry entries[] = {
    ENTRY(DSR_OK, "Success."),
    ENTRY(DSR_ERR_INTERNAL, "The library met a state it should never be in."),
    ENTRY(DSR_ERR_NULL, "A required pointer or view is null."),
    ENTRY(DSR_ERR_STRUCT_SIZE, "struct_size is not one this library knows."),
    ENTRY(DSR_ERR_ENUM, "An enum value is out of range."),
    ENTRY(DSR_ERR_ROW_COUNT, "The number of rows is not in 1 to 64."),
    ENTRY(DSR_ERR_VALUE, "A number is out of its range."),
    ENTRY(DSR_ERR_POSITION, "A token position is one that the operation cannot take."),
    ENTRY(DSR_ERR_DUPLICATE_ROW, "Two rows name the same query row or the same sequence."),
    ENTRY(DSR_ERR_NAME, "A name is unknown, empty, ill-formed or taken."),
    ENTRY(DSR_ERR_DTYPE, "A view has another element type than needed."),
    ENTRY(DSR_ERR_SIZE, "A view holds fewer bytes than needed."),
    ENTRY(DSR_ERR_OVERFLOW, "A product or sum of sizes does not fit."),
    ENTRY(DSR_ERR_OVERLAP, "A writable range overlaps another range of the call."),
    ENTRY(DSR_ERR_ALIGNMENT, "An address is not a multiple of its element size."),
    ENTRY(DSR_ERR_STRIDE, "A row stride is smaller than the row."),
    ENTRY(DSR_ERR_RANGE, "A view reaches past its buffer."),
    ENTRY(DSR_ERR_KV_LEN, "kv_len is shorter than the entries that the position can see."),
    ENTRY(DSR_ERR_UNSUPPORTED_SHAPE, "A head count, dimension, ratio or k is outside the supported set."),
    ENTRY(DSR_ERR_UNSUPPORTED_ISA, "The instruction set asked for is not in this build or not on this machine."),
    ENTRY(DSR_ERR_UNSUPPORTED_DEVICE, "The back end is not in this build, or this machine has no such device."),
    ENTRY(DSR_ERR_UNSUPPORTED_KERNEL, "There is no kernel of the wanted exactness for this operation here."),
    ENTRY(DSR_ERR_OUT_OF_MEMORY, "Memory could not be allocated."),
    ENTRY(DSR_ERR_THREAD, "A thread could not be started."),
    ENTRY(DSR_ERR_DEVICE, "The device driver reported an error."),
    ENTRY(DSR_ERR_DEVICE_LOST, "The device is in a state in which every later call fails."),
    ENTRY(DSR_ERR_STATE, "The object is not in a state that allows the call."),
    ENTRY(DSR_ERR_FORKED, "The context was made before a fork and is used in the child."),
    ENTRY(DSR_ERR_CONTEXT_MISMATCH, "The call mixes objects of two contexts."),
    ENTRY(DSR_ERR_FULL, "A sequence has no room for the token."),
    ENTRY(DSR_ERR_IO, "Reading or writing failed."),
    ENTRY(DSR_ERR_FORMAT, "The data are not of the expected format, or are truncated or damaged."),
    ENTRY(DSR_ERR_MISSING_TENSOR, "A tensor that is needed is missing."),
};

static const status_entry *find_entry(dsr_status status)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (entries[i].status == status)
            return &entries[i];
    return NULL;
}

const char *dsr_status_name(dsr_status status)
{
    const status_entry *entry = find_entry(status);
    return entry ? entry->name : "DSR_ERR_?";
}

const char *dsr_status_text(dsr_status status)
{
    const status_entry *entry = find_entry(status);
    return entry ? entry->text : "A status that this library does not know.";
}
