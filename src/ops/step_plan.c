#include <dsrows/step_plan.h>

enum { MAX_CONTEXT = 1048576 };

static uint32_t min32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

dsr_status dsr_plan_step(dsr_layer_kind kind, uint32_t position, uint32_t context, uint32_t top_k, dsr_step_plan *plan)
{
    const uint32_t ratio = (uint32_t)kind;
    dsr_step_plan step = {.struct_size = sizeof(step)};
    if (!plan)
        return DSR_ERR_NULL;
    if (plan->struct_size != sizeof(*plan))
        return DSR_ERR_STRUCT_SIZE;
    if (kind != DSR_LAYER_WINDOW && kind != DSR_LAYER_RATIO_4 && kind != DSR_LAYER_RATIO_128)
        return DSR_ERR_ENUM;
    if (context == 0 || context > MAX_CONTEXT || (kind == DSR_LAYER_RATIO_4 && top_k == 0))
        return DSR_ERR_VALUE;
    if (position >= context)
        return DSR_ERR_POSITION;
    step.window_capacity = min32(context, DSR_WINDOW);
    step.ring_slot = position % step.window_capacity;
    step.window_count = min32(position + 1, step.window_capacity);
    if (kind != DSR_LAYER_WINDOW) {
        step.compressed_count = (position + 1) / ratio;
        step.selected_count = kind == DSR_LAYER_RATIO_4 ? min32(step.compressed_count, top_k) : step.compressed_count;
        step.emits = (position + 1) % ratio == 0;
    }
    if (step.emits) {
        step.emit_slot = position / ratio;
        step.emit_cache_row = step.window_capacity + step.emit_slot;
        step.emit_rope_position = position + 1 - ratio;
    }
    step.width = step.window_count + step.selected_count;
    *plan = step;
    return DSR_OK;
}

void dsr_window_slots(uint32_t position, uint32_t capacity, int32_t *slots)
{
    const uint64_t end = (uint64_t)position + 1;
    const uint64_t n_slots = end < capacity ? end : capacity;
    for (uint64_t i = 0; i < n_slots; i++)
        slots[i] = (int32_t)((end - n_slots + i) % capacity);
}
