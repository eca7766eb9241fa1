/* The host has threads of its own: the library hands its tasks to the host's runner and starts no thread. The results
 * have the same bits as with the library's own threads, or with one. */
#include "example.h"

#include <pthread.h>

enum { N_WORKERS = 3, N_ROWS = 4, N_ELEMENTS = 100000 };

/* One parallel job. A real engine would wake threads that it already has. */
typedef struct job {
    dsr_task_fn body;
    void *body_context;
    uint32_t n_tasks;
} job;

typedef struct worker {
    const job *job;
    uint32_t number;
} worker;

static void *work(void *argument)
{
    const worker *w = argument;
    /* Which worker runs which task does not matter. No two threads may use one worker number at a time. */
    for (uint32_t task = w->number; task < w->job->n_tasks; task += N_WORKERS) {
        w->job->body(w->job->body_context, task, w->number);
    }
    return NULL;
}

/* A dsr_parallel_fn: every task once, and all of them are done when it returns. */
static void run_tasks(void *user, uint32_t n_tasks, dsr_task_fn body, void *body_context)
{
    const job j = {body, body_context, n_tasks};
    worker workers[N_WORKERS];
    pthread_t threads[N_WORKERS];
    int started[N_WORKERS] = {0};

    ++*(int *)user; /* counts the jobs */
    for (uint32_t i = 1; i < N_WORKERS; i++) {
        workers[i] = (worker){&j, i};
        started[i] = pthread_create(&threads[i], NULL, work, &workers[i]) == 0;
    }
    workers[0] = (worker){&j, 0};
    work(&workers[0]); /* the calling thread takes part */
    for (uint32_t i = 1; i < N_WORKERS; i++) {
        if (started[i]) {
            pthread_join(threads[i], NULL);
        } else {
            work(&workers[i]);
        }
    }
}

int main(void)
{
    int n_jobs = 0;
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.n_threads = N_WORKERS;
    desc.parallel = run_tasks;
    desc.parallel_user = &n_jobs;
    dsr_context *context = open_context(&desc);
    dsr_encoder *encoder = NULL;
    check(context, dsr_encoder_create(context, &encoder));

    dsr_view sources[N_ROWS];
    for (int r = 0; r < N_ROWS; r++) {
        sources[r] = new_view(context, N_ELEMENTS, DSR_DTYPE_F32);
        for (int i = 0; i < N_ELEMENTS; i++) {
            ((float *)data_of(sources[r]))[i] = (float)(r * N_ELEMENTS + i);
        }
    }
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    gather.n_rows = N_ROWS;
    gather.sources = sources;
    gather.row_elements = N_ELEMENTS;
    gather.output = new_view(context, (uint64_t)N_ROWS * N_ELEMENTS, DSR_DTYPE_F32);
    check(context, dsr_encode_gather(encoder, &gather));
    check(context, dsr_encoder_submit(encoder));
    check(context, dsr_encoder_wait(encoder));

    const float *output = data_of(gather.output);
    int n_wrong = 0;
    for (int i = 0; i < N_ROWS * N_ELEMENTS; i++) {
        n_wrong += output[i] != (float)i;
    }
    printf("%d parallel jobs on %d workers of the host, %d wrong elements\n", n_jobs, N_WORKERS, n_wrong);

    dsr_encoder_destroy(encoder);
    for (int r = 0; r < N_ROWS; r++) {
        dsr_buffer_destroy(sources[r].buffer);
    }
    dsr_buffer_destroy(gather.output.buffer);
    dsr_context_destroy(context);
    return n_wrong != 0;
}
