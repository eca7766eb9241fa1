#include "cli.h"

#include <stdio.h>

static const dsr_isa levels[] = {DSR_ISA_SCALAR, DSR_ISA_AVX2, DSR_ISA_AVX512, DSR_ISA_NEON};
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

static int parse(int argc, char **argv, int *json)
{
    static const struct option options[] = {CLI_COMMON_OPTIONS, {0}};
    int option;
    uint64_t seen = 0;
    while ((option = cli_next_option(&cli_info, argc, argv, options, &seen)) != -1) {
        if (option == 'h') {
            return -1;
        }
        if (option != CLI_JSON) {
            return cli_unknown_option(&cli_info);
        }
        *json = 1;
    }
    return optind == argc ? CLI_DONE : cli_usage_error(&cli_info, "no argument is needed, '%s' given", argv[optind]);
}

/* Names of the kernels a device-exact context would run; null after a message. */
static json_t *kernel_names(dsr_isa isa, int *code)
{
    cli_device device = CLI_DEVICE_INIT;
    dsr_context *context = NULL;
    device.isa = isa;
    *code = cli_open_device(&cli_info, &device, &context);
    if (*code != CLI_DONE) {
        return NULL;
    }
    json_t *names = json_array();
    for (uint32_t i = 0; i < dsr_registry_n_kernels(context); i++) {
        cli_json_append(names, json_string(dsr_registry_kernel_name(context, i)));
    }
    dsr_context_destroy(context);
    return names;
}

static json_t *describe_level(dsr_isa isa, int *code)
{
    const int available = dsr_isa_available(isa);
    json_t *level = json_pack("{s:s, s:b}", "isa", dsr_isa_name(isa), "available", available);
    if (available) {
        json_t *kernels = kernel_names(isa, code);
        json_object_set_new(level, "kernels", kernels != NULL ? kernels : json_null());
    }
    return level;
}

/* The level AUTO stands for; null after a message. */
static const char *chosen_level(int *code)
{
    const cli_device device = CLI_DEVICE_INIT;
    dsr_context *context = NULL;
    *code = cli_open_device(&cli_info, &device, &context);
    if (*code != CLI_DONE) {
        return NULL;
    }
    const char *name = dsr_isa_name(dsr_context_isa(context));
    dsr_context_destroy(context);
    return name;
}

static json_t *describe_library(int *code)
{
    json_t *described = json_array();
    const char *chosen = chosen_level(code);
    for (size_t i = 0; i < N_LEVELS && *code == CLI_DONE; i++) {
        cli_json_append(described, describe_level(levels[i], code));
    }
    return json_pack("{s:s, s:i, s:[{s:s, s:i}, {s:s, s:i}], s:s*, s:o, s:[s, s]}", "version", dsr_version_string(),
                     "bits", (int)dsr_bits_version(), "backends", "name", "cpu", "devices",
                     (int)dsr_device_count(DSR_DEVICE_CPU), "name", "cuda", "devices",
                     (int)dsr_device_count(DSR_DEVICE_CUDA), "isa", chosen, "levels", described, "exactness", "device",
                     "row");
}

/* A back end in a list, and on a line below why there is no device for it. */
static void print_cuda(void)
{
    const uint32_t n_devices = dsr_device_count(DSR_DEVICE_CUDA);
    printf("cuda (%u %s)\n", (unsigned)n_devices, n_devices == 1 ? "device" : "devices");
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    dsr_context *context = NULL;
    if (n_devices == 0 && dsr_context_create(&desc, &context) != DSR_OK) {
        printf("             %s\n", dsr_create_error_text());
    }
    dsr_context_destroy(context);
}

static void print_text(json_t *library)
{
    size_t i, k;
    json_t *level, *kernel;
    printf("dsrows %s, bits %u\n", dsr_version_string(), (unsigned)dsr_bits_version());
    printf("back ends:   cpu, ");
    print_cuda();
    printf("exactness:   device (default), row\n");
    printf("level:       %s\n", json_string_value(json_object_get(library, "isa")));
    json_array_foreach(json_object_get(library, "levels"), i, level)
    {
        printf("\n%s: %s\n", json_string_value(json_object_get(level, "isa")),
               json_is_true(json_object_get(level, "available")) ? "available" : "not available here");
        json_array_foreach(json_object_get(level, "kernels"), k, kernel)
        {
            printf("  %s\n", json_string_value(kernel));
        }
    }
    json_decref(library);
}

static int run(int argc, char **argv)
{
    int json = 0, code = parse(argc, argv, &json);
    if (code != CLI_DONE) {
        return code < 0 ? cli_print_help(&cli_info) : code;
    }
    json_t *library = describe_library(&code);
    if (code != CLI_DONE) {
        json_decref(library);
        return code;
    }
    if (json) {
        cli_print_json(library);
    } else {
        print_text(library);
    }
    return CLI_DONE;
}

const cli_command cli_info = {
    .name = "info",
    .arguments = "[--json]",
    .summary = "back ends, instruction sets, kernels, exactness and versions",
    .help = "",
    .run = run,
};
