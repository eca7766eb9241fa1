/* dsrows: joint-decode kernels for DeepSeek-V4 attention. Includes every stable header. */
#ifndef DSROWS_DSROWS_H
#define DSROWS_DSROWS_H

#include <dsrows/attention.h>
#include <dsrows/cache.h>
#include <dsrows/context.h>
#include <dsrows/encoder.h>
#include <dsrows/ops.h>
#include <dsrows/status.h>
#include <dsrows/step_plan.h>
#include <dsrows/version.h>

#endif
