/* A compiler library of our own that compiles nothing: it keeps source and options, and fails on demand. */
#ifndef FAKE_NVRTC_H
#define FAKE_NVRTC_H

#include <stdint.h>

typedef struct fake_nvrtc_state {
    uint32_t n_calls; /* since the last reset, all kinds */
    uint32_t fail_at; /* the call of this number fails (1 is the first); 0: none */
    int fail_with;    /* an nvrtcResult */
    int n_programs;   /* made and not destroyed */
    int n_options;
    char options[8][64];
    char source[256];
} fake_nvrtc_state;

/* What compiling gives; a source with "#error" in it does not compile, and the log is FAKE_NVRTC_LOG. */
#define FAKE_NVRTC_IMAGE "a compiled image"
#define FAKE_NVRTC_LOG   "mine(1): error: #error directive\n\n1 error detected in the compilation of \"mine\".\n"

/* Exported by the library under the name fake_nvrtc. */
typedef fake_nvrtc_state *fake_nvrtc_state_fn(void);

#endif
