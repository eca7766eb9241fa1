/* The ops of `dsrows run`: from the tensors of a case to the tensors of its result. */
#ifndef DSROWS_RUN_OPS_H
#define DSROWS_RUN_OPS_H

#include "case_file.h"
#include "session.h"

typedef struct run_op {
    const char *name;
    case_names names;
    void (*run)(case_file *c, session *s);
} run_op;

/* Null for an unknown name. */
const run_op *run_op_find(const char *name);

#endif
