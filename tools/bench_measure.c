#include "bench_measure.h"

#include "bench_plain.h"
#include "bench_work.h"
#include "timing.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 301, MIN_SAMPLES = 7 };

typedef struct samples {
    double seconds[MAX_SAMPLES];
    uint32_t n;
} samples;

static bench_stats stats_of(samples *s)
{
    if (s->n == 0) {
        return (bench_stats){0, 0, 0, 0};
    }
    timing_sort(s->seconds, s->n);
    return (bench_stats){s->seconds[0], s->seconds[s->n / 2], s->seconds[s->n * 9 / 10], s->n};
}

static void run(session *s, dsr_encoder *encoder, int again)
{
    if (s->code == CLI_DONE) {
        session_check(s, again ? dsr_encoder_replay(encoder) : dsr_encoder_submit(encoder));
    }
    if (s->code == CLI_DONE) {
        session_check(s, dsr_encoder_wait(encoder));
    }
}

static void run_alone(session *s, bench_work *work, int again)
{
    for (uint32_t r = 0; r < work->n_alone; r++) {
        run(s, work->alone[r], again);
    }
}

static void poison(session *s, const bench_work *work)
{
    for (uint32_t i = 0; i < work->n_outputs; i++) {
        unsigned char *bytes = cli_allocate(work->outputs[i].byte_length);
        memset(bytes, 0xff, work->outputs[i].byte_length);
        session_write(s, work->outputs[i], 0, bytes, work->outputs[i].byte_length);
        free(bytes);
    }
}

static unsigned char *read_outputs(session *s, const bench_work *work, uint64_t *n_bytes)
{
    *n_bytes = 0;
    for (uint32_t i = 0; i < work->n_outputs; i++) {
        *n_bytes += work->outputs[i].byte_length;
    }
    unsigned char *bytes = cli_allocate(*n_bytes);
    uint64_t at = 0;
    for (uint32_t i = 0; i < work->n_outputs; i++) {
        session_read(s, work->outputs[i], 0, bytes + at, work->outputs[i].byte_length);
        at += work->outputs[i].byte_length;
    }
    return bytes;
}

/* Whether joint and alone leave the same bytes in poisoned outputs. A compressor changes the state it starts from: only
 * its second and later runs start alike, so everything has run twice before. */
static int leaves_equal(session *s, bench_work *work)
{
    uint64_t n_bytes;
    poison(s, work);
    run(s, work->joint, 1);
    unsigned char *joint = read_outputs(s, work, &n_bytes);
    poison(s, work);
    run_alone(s, work, 1);
    unsigned char *alone = read_outputs(s, work, &n_bytes);
    const int is_equal = memcmp(joint, alone, n_bytes) == 0;
    free(alone);
    free(joint);
    return is_equal;
}

static void sample(session *s, dsr_encoder *encoder, bench_work *alone, samples *to)
{
    const double begin = timing_now();
    if (alone != NULL) {
        run_alone(s, alone, 1);
    } else {
        run(s, encoder, 1);
    }
    to->seconds[to->n++] = timing_now() - begin;
}

static void take_samples(session *a, bench_work *work, session *versus, bench_work *versus_work, double seconds,
                         bench_result *result)
{
    samples *joint = cli_allocate(sizeof *joint), *alone = cli_allocate(sizeof *alone);
    samples *other = cli_allocate(sizeof *other), *probe = cli_allocate(sizeof *probe);
    samples *plain = cli_allocate(sizeof *plain);
    bench_plain *plain_work = bench_plain_create(&result->shape);
    const dsr_isa isa = dsr_context_isa(a->context);
    const double end = timing_now() + seconds;
    while (a->code == CLI_DONE && joint->n < MAX_SAMPLES && (joint->n < MIN_SAMPLES || timing_now() < end)) {
        sample(a, work->joint, NULL, joint);
        if (work->n_alone > 0) {
            sample(a, NULL, work, alone);
        }
        if (versus != NULL) {
            sample(versus, versus_work->joint, NULL, other);
        }
        if (plain_work != NULL) {
            const double begin = timing_now();
            bench_plain_run(plain_work);
            plain->seconds[plain->n++] = timing_now() - begin;
        }
        probe->seconds[probe->n++] = bench_probe_fma(isa);
    }
    result->joint = stats_of(joint);
    result->alone = stats_of(alone);
    result->versus = stats_of(other);
    result->plain = stats_of(plain);
    result->fma_gflops = stats_of(probe).median;
    bench_plain_destroy(plain_work);
    free(plain);
    free(probe);
    free(other);
    free(alone);
    free(joint);
}

int bench_measure(session *a, session *versus, const bench_shape *shape, const bench_shape *versus_shape,
                  double seconds, bench_result *result)
{
    bench_work work, versus_work;
    memset(result, 0, sizeof *result);
    memset(&versus_work, 0, sizeof versus_work);
    result->shape = *shape;
    result->n_threads = dsr_context_n_threads(a->context) > 1 ? dsr_context_n_threads(a->context) : 1;
    const uint64_t seed = (uint64_t)(timing_now() * 1e9);
    bench_build(a, shape, seed, shape->rows > 1, &work);
    if (versus != NULL) {
        bench_build(versus, versus_shape, seed, 0, &versus_work);
    }
    if (a->code == CLI_DONE && (versus == NULL || versus->code == CLI_DONE)) {
        for (int again = 0; again < 2; again++) {
            run(a, work.joint, again);
            run_alone(a, &work, again);
            if (versus != NULL) {
                run(versus, versus_work.joint, again);
            }
        }
        result->is_equal = work.n_alone == 0 || leaves_equal(a, &work);
        take_samples(a, &work, versus, &versus_work, seconds, result);
    }
    bench_release(&work);
    bench_release(&versus_work);
    session_release_buffers(a);
    if (versus != NULL) {
        session_release_buffers(versus);
    }
    return a->code != CLI_DONE ? a->code : versus != NULL ? versus->code : CLI_DONE;
}

static void run_smallest(session *s, const dsr_gather_desc *gather)
{
    if (s->code == CLI_DONE) {
        session_check(s, dsr_encoder_reset(s->encoder));
        session_check(s, dsr_encode_gather(s->encoder, gather));
    }
    run(s, s->encoder, 0);
}

double bench_measure_smallest(session *s)
{
    enum { PASSES = 9, CALLS = 1000 };
    const dsr_view source = session_allocate(s, sizeof(float), DSR_DTYPE_F32);
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    samples *calls = cli_allocate(sizeof *calls);
    gather.n_rows = 1;
    gather.sources = &source;
    gather.row_elements = 1;
    gather.output = session_allocate(s, sizeof(float), DSR_DTYPE_F32);
    for (int i = 0; i < PASSES; i++) {
        const double begin = timing_now();
        for (int c = 0; c < CALLS; c++) {
            run_smallest(s, &gather);
        }
        calls->seconds[calls->n++] = (timing_now() - begin) / CALLS;
    }
    const double median = stats_of(calls).median;
    free(calls);
    session_check(s, dsr_encoder_reset(s->encoder));
    session_release_buffers(s);
    return median;
}
