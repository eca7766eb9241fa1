#include "bench_report.h"

#include "out_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 640, HEIGHT = 360, MARGIN = 56 };

double bench_over_fma(const bench_result *result)
{
    const double peak = result->fma_gflops * result->n_threads;
    return peak > 0 ? bench_flops(&result->shape) / result->joint.median * 1e-9 / peak : 0;
}

/* A drawing with logarithmic axes from least to most. */
typedef struct plot {
    FILE *file;
    double x_least, x_most, y_least, y_most;
} plot;

static double along(double value, double least, double most, double begin, double end)
{
    return begin + (log(value) - log(least)) / (log(most) - log(least)) * (end - begin);
}

static double plot_x(const plot *p, double x)
{
    return along(x, p->x_least, p->x_most, MARGIN, WIDTH - 16);
}

static double plot_y(const plot *p, double y)
{
    return along(y, p->y_least, p->y_most, HEIGHT - MARGIN, 16);
}

static plot plot_open(FILE *file, const char *title, const char *x_label, const char *y_label, const double range[4])
{
    const plot p = {file, range[0], range[1], range[2], range[3]};
    fprintf(file, "<h2>%s</h2>\n<svg viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\">\n", title, WIDTH, HEIGHT, WIDTH);
    for (double x = pow(10, ceil(log10(p.x_least))); x <= p.x_most; x *= 10) {
        fprintf(file,
                "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"16\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%g</text>\n",
                plot_x(&p, x), plot_x(&p, x), HEIGHT - MARGIN, plot_x(&p, x), HEIGHT - MARGIN + 18, x);
    }
    for (double y = pow(10, ceil(log10(p.y_least))); y <= p.y_most; y *= 10) {
        fprintf(file,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%g</text>\n",
                MARGIN, WIDTH - 16, plot_y(&p, y), plot_y(&p, y), MARGIN - 6, plot_y(&p, y) + 4, y);
    }
    fprintf(file,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n<text x=\"14\" y=\"%d\" "
            "transform=\"rotate(-90 14 %d)\" text-anchor=\"middle\">%s</text>\n",
            WIDTH / 2, HEIGHT - 14, x_label, HEIGHT / 2, HEIGHT / 2, y_label);
    return p;
}

static void plot_close(const plot *p)
{
    fputs("</svg>\n", p->file);
}

static const char *const colours[BENCH_N_OPS] = {"#1b6ca8", "#c8553d", "#d99a1c", "#4f7942", "#7a4988", "#333333"};

static void plot_point(const plot *p, const bench_result *result, double x, double y)
{
    fprintf(p->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"><title>%s: %.4g, %.4g</title></circle>\n",
            plot_x(p, x), plot_y(p, y), colours[result->shape.op], result->shape.name, x, y);
}

/* Where memory, then the units of peak GFLOP/s are the limit. */
static void draw_roof(const plot *p, double peak, double read_gbytes)
{
    const double bend = peak / read_gbytes;
    if (bend > p->x_least && bend < p->x_most && read_gbytes * p->x_least > p->y_least) {
        fprintf(p->file, "<polyline class=\"roof\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n", plot_x(p, p->x_least),
                plot_y(p, read_gbytes * p->x_least), plot_x(p, bend), plot_y(p, peak), plot_x(p, p->x_most),
                plot_y(p, peak));
    }
}

/* Operations a second against operations a byte, below the ceilings of memory and of each kind of unit. */
static void draw_roofline(FILE *file, const bench_run *run)
{
    const double peaks[] = {run->peaks.fma_gflops, run->peaks.bf16_gflops, run->peaks.amx_gflops};
    const double n_threads = run->n_threads;
    const double most = n_threads * fmax(fmax(peaks[0], peaks[1]), peaks[2]);
    const double range[4] = {0.5, 1000, 1, most > 1 ? 3 * most : 1000};
    const plot p = plot_open(file, "Roofline", "operations a byte of operands", "GFLOP/s", range);
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++) {
        draw_roof(&p, n_threads * peaks[i], run->peaks.read_all_gbytes);
    }
    for (size_t i = 0; i < run->n_results; i++) {
        const bench_result *r = &run->results[i];
        const double gflops = bench_flops(&r->shape) / r->joint.median * 1e-9;
        const double intensity = bench_flops(&r->shape) / bench_bytes(&r->shape);
        if (gflops > range[2] && intensity > range[0] && intensity < range[1]) {
            plot_point(&p, r, intensity, gflops);
        }
    }
    plot_close(&p);
}

static double time_per_row(const bench_result *r)
{
    return r->joint.median / r->shape.rows * 1e6;
}

typedef enum bench_axis { BY_ROWS, BY_CONTEXT, BY_THREADS } bench_axis;

static void draw_scaling(FILE *file, const bench_run *run, const char *title, const char *label, bench_axis axis)
{
    static const double least[] = {0.8, 500, 0.8}, most[] = {80, 2e6, 128};
    const double range[4] = {least[axis], most[axis], 0.5, 2e5};
    const plot p = plot_open(file, title, label, "microseconds a row", range);
    for (size_t i = 0; i < run->n_results; i++) {
        const bench_result *r = &run->results[i];
        const double x = axis == BY_ROWS ? r->shape.rows : axis == BY_CONTEXT ? r->shape.context : r->n_threads;
        if (x > range[0] && time_per_row(r) > range[2]) {
            plot_point(&p, r, x, time_per_row(r));
        }
    }
    plot_close(&p);
}

static void describe_ratio(const bench_stats *other, const bench_stats *joint, char *text, size_t size)
{
    if (other->n == 0) {
        snprintf(text, size, "-");
    } else {
        snprintf(text, size, "%.2f", other->median / joint->median);
    }
}

static void write_table(FILE *file, const bench_run *run)
{
    fputs("<table><tr><th>shape</th><th>threads</th><th>median us</th><th>least</th><th>90 "
          "%</th><th>GFLOP/s</th><th>GB/s</th>"
          "<th>over F32 FMA peak</th><th>alone / joint</th><th>other / this</th><th>joint = alone</th></tr>\n",
          file);
    for (size_t i = 0; i < run->n_results; i++) {
        const bench_result *r = &run->results[i];
        char alone[32], versus[32];
        describe_ratio(&r->alone, &r->joint, alone, sizeof alone);
        describe_ratio(&r->versus, &r->joint, versus, sizeof versus);
        fprintf(
            file,
            "<tr><td>%s</td><td>%u</td><td>%.2f</td><td>%.2f</td><td>%.2f</td><td>%.1f</td><td>%.2f</td><td>%.3f</td>"
            "<td>%s</td><td>%s</td><td>%s</td></tr>\n",
            r->shape.name, r->n_threads, 1e6 * r->joint.median, 1e6 * r->joint.least, 1e6 * r->joint.p90,
            bench_flops(&r->shape) / r->joint.median * 1e-9, bench_bytes(&r->shape) / r->joint.median * 1e-9,
            bench_over_fma(r), alone, versus, r->is_equal ? "yes" : "NO");
    }
    fputs("</table>\n", file);
}

static void write_escaped(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        if (strchr("<>&\"'", *text) != NULL) {
            fprintf(file, "&#%d;", *text);
        } else {
            fputc(*text, file);
        }
    }
}

int bench_check_report(const cli_command *command, const char *path)
{
    if (!out_check(path)) {
        cli_error(command, "%s: %s", path, strerror(errno));
        return CLI_BAD_INPUT;
    }
    return CLI_DONE;
}

static void write_page(FILE *file, const bench_run *run)
{
    fprintf(file, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>dsrows bench</title><style>"
                  "body{font:14px sans-serif;max-width:1000px;margin:2em auto}table{border-collapse:collapse}"
                  "td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}td:first-child{text-align:left}"
                  "text{font:12px sans-serif}.grid{stroke:#ddd}.roof{fill:none;stroke:#999;stroke-width:2}</style>\n"
                  "<h1>dsrows bench</h1><p>");
    write_escaped(file, run->machine);
    fprintf(file, "; %s; %s (%s), %s-exact, %u threads; <code>", run->date, cli_backend_name(run->backend),
            dsr_isa_name(run->isa), cli_exactness_name(run->exactness), run->n_threads);
    write_escaped(file, run->command);
    fputs("</code></p>\n", file);
    fprintf(file,
            "<p>Peaks of this process, one thread: F32 multiply-add %.1f GFLOP/s, BF16 dot %.1f, AMX %.1f; memory read "
            "%.1f GB/s, all threads %.1f.</p>\n",
            run->peaks.fma_gflops, run->peaks.bf16_gflops, run->peaks.amx_gflops, run->peaks.read_gbytes,
            run->peaks.read_all_gbytes);
    write_table(file, run);
    draw_roofline(file, run);
    draw_scaling(file, run, "Scaling with rows", "rows of a call", BY_ROWS);
    draw_scaling(file, run, "Scaling with context", "tokens of context", BY_CONTEXT);
    draw_scaling(file, run, "Scaling with threads", "threads", BY_THREADS);
    fputs("</html>\n", file);
}

int bench_write_report(const cli_command *command, const bench_run *run, const char *path)
{
    out_file file;
    int done = out_open(&file, path);
    if (done) {
        write_page(file.stream, run);
        done = out_close(&file);
    }
    if (!done) {
        cli_error(command, "%s: %s", path, strerror(errno));
        return CLI_BAD_INPUT;
    }
    return CLI_DONE;
}
