/* Attention layers with random weights, and inputs for them: pure functions of a seed. */
#ifndef TEST_SYNTHETIC_LAYER_H
#define TEST_SYNTHETIC_LAYER_H

#include <dsrows/attention.h>

enum { SYNTHETIC_MAX_TENSORS = 32 };

typedef enum synthetic_format {
    SYNTHETIC_BF16,
    SYNTHETIC_FP8_F32,    /* E4M3 codes, power-of-two scales as F32 */
    SYNTHETIC_FP8_E8M0,   /* the same scales as E8M0 */
    SYNTHETIC_FP8_AS_BF16 /* the values of the two FP8 forms, as BF16 */
} synthetic_format;

typedef struct synthetic_tensor {
    char name[80];
    dsr_tensor tensor;
    void *data;
} synthetic_tensor;

typedef struct synthetic_weights {
    uint32_t n_tensors;
    synthetic_tensor tensors[SYNTHETIC_MAX_TENSORS];
} synthetic_weights;

/* All tensors of a layer of this configuration (defaults filled in or not), with names under prefix "layer.". Weights
 * have deviation 1 / sqrt(inputs), twice that for gates. */
void synthetic_weights_init(synthetic_weights *weights, const dsr_attention_config *config, synthetic_format format,
                            uint64_t seed);
void synthetic_weights_free(synthetic_weights *weights);
#define SYNTHETIC_PREFIX "layer."
/* A dsr_tensor_lookup_fn; user is the weights. */
int synthetic_lookup(void *user, const char *name, dsr_tensor *tensor);
synthetic_tensor *synthetic_find(synthetic_weights *weights, const char *name_without_prefix);

/* Row `token` of a stream of inputs: BF16 [hidden_size]. Neighbours are alike, so that heads attend to something. */
void synthetic_input(uint64_t seed, uint32_t stream, uint32_t token, uint32_t hidden_size, uint16_t *row);

/* Gives a sequence the state of `position` made-up tokens, by loading a saved form with random rows. Far contexts come
 * at the cost of their bytes. */
void synthetic_state_load(dsr_sequence *sequence, uint32_t position, uint64_t seed);

#endif
