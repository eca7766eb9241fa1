/* Files that a command leaves behind. */
#ifndef DSROWS_OUT_FILE_H
#define DSROWS_OUT_FILE_H

#include <stdio.h>

/* A file that is new or to be replaced is written beside its place and moved there when it is whole, so that a failure
 * leaves what was there before. A device, a pipe or a link is written as it is. */
typedef struct out_file {
    FILE *stream;
    const char *path;
    char *partial; /* null: the file itself is written */
} out_file;

/* path must live as long as the file. These return 1, or 0 with errno set; after 0 there is nothing to close. */
int out_open(out_file *file, const char *path);
/* Closes the file; it takes its place if all of it could be written. */
int out_close(out_file *file);
/* Whether a file can be made there; changes nothing that is there. */
int out_check(const char *path);

#endif
