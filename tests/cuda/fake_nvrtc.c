#include "fake_nvrtc.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define ENTRY(name, arguments)                                                                                         \
    EXPORT int name arguments;                                                                                         \
    int name arguments

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, COMPILATION = 6 };

static fake_nvrtc_state state;

EXPORT fake_nvrtc_state *fake_nvrtc(void);
fake_nvrtc_state *fake_nvrtc(void)
{
    return &state;
}

static int count(void)
{
    state.n_calls++;
    return state.n_calls == state.fail_at ? state.fail_with : SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(int result);
const char *nvrtcGetErrorString(int result)
{
    return result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_OTHER";
}

ENTRY(nvrtcCreateProgram, (void **program, const char *source, const char *name, int n_headers,
                           const char *const *headers, const char *const *include_names))
{
    (void)name;
    (void)n_headers;
    (void)headers;
    (void)include_names;
    const int result = count();
    if (result != SUCCESS)
        return result;
    *program = malloc(1);
    if (*program == NULL)
        return OUT_OF_MEMORY;
    state.n_programs++;
    strncpy(state.source, source, sizeof state.source - 1);
    return SUCCESS;
}

ENTRY(nvrtcCompileProgram, (void *program, int n_options, const char *const *options))
{
    (void)program;
    state.n_options = n_options;
    for (int i = 0; i < n_options && i < 8; i++)
        strncpy(state.options[i], options[i], sizeof state.options[i] - 1);
    const int result = count();
    return result == SUCCESS && strstr(state.source, "#error") != NULL ? COMPILATION : result;
}

ENTRY(nvrtcGetProgramLogSize, (void *program, size_t *n_bytes))
{
    (void)program;
    *n_bytes = sizeof FAKE_NVRTC_LOG;
    return count();
}

ENTRY(nvrtcGetProgramLog, (void *program, char *text))
{
    (void)program;
    memcpy(text, FAKE_NVRTC_LOG, sizeof FAKE_NVRTC_LOG);
    return count();
}

ENTRY(nvrtcGetCUBINSize, (void *program, size_t *n_bytes))
{
    (void)program;
    *n_bytes = 64; /* as much as the fake driver keeps of an image */
    return count();
}

ENTRY(nvrtcGetCUBIN, (void *program, char *image))
{
    (void)program;
    memset(image, 0, 64);
    memcpy(image, FAKE_NVRTC_IMAGE, sizeof FAKE_NVRTC_IMAGE);
    return count();
}

ENTRY(nvrtcDestroyProgram, (void **program))
{
    free(*program);
    *program = NULL;
    state.n_programs--;
    return SUCCESS;
}
