/* The results of `dsrows bench` as one HTML file with tables and drawings, without outside references. */
#ifndef DSROWS_BENCH_REPORT_H
#define DSROWS_BENCH_REPORT_H

#include "bench_measure.h"

typedef struct bench_run {
    const char *machine; /* CPU model */
    const char *date;
    const char *command;
    dsr_device_kind backend;
    dsr_isa isa;
    dsr_exactness exactness;
    uint32_t n_threads; /* the most of the run */
    bench_peaks peaks;
    double smallest_seconds; /* of the smallest op, first context */
    bench_result *results;
    size_t n_results;
} bench_run;

/* Rate of a result over the F32 multiply-add peak of all threads, which units for narrower numbers may exceed; 0 where
 * there is none. */
double bench_over_fma(const bench_result *result);
/* Whether a report can be written there; leaves what is there. CLI_DONE, or CLI_BAD_INPUT after a message. */
int bench_check_report(const cli_command *command, const char *path);
/* CLI_DONE, or CLI_BAD_INPUT after a message. */
int bench_write_report(const cli_command *command, const bench_run *run, const char *path);

#endif
