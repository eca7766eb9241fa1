#include "out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Creates a file whose name, path and a suffix, is nobody's yet, with the permissions of the file that it will replace
 * (*found, or null). */
static int open_beside(out_file *file, const struct stat *found)
{
    const size_t size = strlen(file->path) + sizeof ".partial99";
    const mode_t mode = found != NULL ? found->st_mode & 0777 : 0666;
    int descriptor = -1;
    file->partial = malloc(size);
    errno = file->partial != NULL ? EEXIST : ENOMEM;
    for (int i = 0; i < 100 && descriptor < 0 && errno == EEXIST; i++) {
        snprintf(file->partial, size, i == 0 ? "%s.partial" : "%s.partial%d", file->path, i);
        descriptor = open(file->partial, O_WRONLY | O_CREAT | O_EXCL, mode);
    }
    if (descriptor >= 0 && found != NULL) {
        (void)fchmod(descriptor, mode); /* what the umask took */
    }
    file->stream = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (descriptor >= 0 && file->stream == NULL) {
        close(descriptor);
        remove(file->partial);
    }
    return file->stream != NULL;
}

int out_open(out_file *file, const char *path)
{
    struct stat found;
    const int is_there = lstat(path, &found) == 0;
    *file = (out_file){.path = path};
    if (is_there && !S_ISREG(found.st_mode)) {
        file->stream = fopen(path, "wb");
    } else if (!open_beside(file, is_there ? &found : NULL)) {
        free(file->partial);
    }
    return file->stream != NULL;
}

/* 1, or 0 with the first failure's errno. */
static int close_stream(FILE *stream)
{
    const int is_written = fflush(stream) == 0 && !ferror(stream);
    const int error = errno;
    const int is_closed = fclose(stream) == 0;
    if (!is_written) {
        errno = error;
    }
    return is_written && is_closed;
}

int out_close(out_file *file)
{
    const int done = close_stream(file->stream) && (file->partial == NULL || rename(file->partial, file->path) == 0);
    const int error = errno;
    if (!done && file->partial != NULL) {
        remove(file->partial);
    }
    free(file->partial);
    errno = error;
    return done;
}

int out_check(const char *path)
{
    struct stat found;
    out_file file;
    if (lstat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
        if (stat(path, &found) != 0) {
            return errno == ENOENT; /* a link to what will be made */
        }
        errno = EISDIR;
        return !S_ISDIR(found.st_mode) && access(path, W_OK) == 0;
    }
    if (!out_open(&file, path)) {
        return 0;
    }
    fclose(file.stream);
    remove(file.partial);
    free(file.partial);
    return 1;
}
