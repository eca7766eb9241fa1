/* What a program of either language does with the headers; some C++ programs include them within extern "C". */
#ifdef __cplusplus
extern "C" {
#include HEADER
}
#endif
#include HEADER
#include HEADER

#include <dsrows/dsrows.h>

int use_headers(void);

int use_headers(void)
{
    dsr_context_desc context = DSR_CONTEXT_DESC_INIT;
    dsr_kernel_desc kernel = DSR_KERNEL_DESC_INIT;
    dsr_device_kernel_desc device_kernel = DSR_DEVICE_KERNEL_DESC_INIT;
    dsr_attention_desc attention = DSR_ATTENTION_DESC_INIT;
    dsr_indexer_desc indexer = DSR_INDEXER_DESC_INIT;
    dsr_compressor_desc compressor = DSR_COMPRESSOR_DESC_INIT;
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    dsr_copy_desc copy = DSR_COPY_DESC_INIT;
    dsr_rope_desc rope = DSR_ROPE_DESC_INIT;
    dsr_fake_quant_desc fake_quant = DSR_FAKE_QUANT_DESC_INIT;
    dsr_rms_norm_desc rms_norm = DSR_RMS_NORM_DESC_INIT;
    dsr_projection_desc projection = DSR_PROJECTION_DESC_INIT;
    dsr_append_desc append = DSR_APPEND_DESC_INIT;
    dsr_convert_desc convert = DSR_CONVERT_DESC_INIT;
    dsr_projection_weights weights = DSR_PROJECTION_WEIGHTS_INIT;
    dsr_attention_config layer = DSR_ATTENTION_CONFIG_INIT;
    dsr_step_desc step = DSR_STEP_DESC_INIT;
    context.n_threads = kernel.n_tasks + attention.n_rows + indexer.n_rows + compressor.n_rows + gather.n_rows +
                        copy.n_rows + rope.n_rows + rms_norm.dim + projection.n_rows + append.n_rows + convert.n_rows +
                        device_kernel.n_options + weights.n_inputs + layer.top_k + step.n_entries;
    return context.struct_size == sizeof(context) && fake_quant.n_vectors == 0 && context.n_threads == 0;
}
