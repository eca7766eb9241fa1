/* Saved sequences in files: replaced when the new one is whole, read no further than needed. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "block/layer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Shows of a long path the end, so that the text has room for the reason. */
static dsr_status fail_file(const dsr_sequence *sequence, const char *what, const char *path, const char *why)
{
    enum { SHOWN_BYTES = 300 };
    const size_t n = strlen(path);
    return dsri_fail(sequence->attention->context, DSR_ERR_IO, "sequence: cannot %s %s%s: %s", what,
                     n > SHOWN_BYTES ? "..." : "", n > SHOWN_BYTES ? path + n - SHOWN_BYTES : path, why);
}

static dsr_status io_error(const dsr_sequence *sequence, const char *what, const char *path)
{
    return fail_file(sequence, what, path, errno ? strerror(errno) : "short transfer");
}

static dsr_status not_regular(const dsr_sequence *sequence, const char *what, const char *path)
{
    return fail_file(sequence, what, path, "not a regular file");
}

enum { PATH_BYTES = 4096, MAX_PARTS = 100 };

/* Gives an empty file, which nobody else may open yet, the owner, the group and the permissions of another, as far as
 * the process may. A group that cannot be had takes its permissions along: they were not meant for the process's own.
 */
static void take_access(int file, const struct stat *from)
{
    mode_t mode = from->st_mode & 0777;
    if (fchown(file, from->st_uid, from->st_gid) != 0 && fchown(file, (uid_t)-1, from->st_gid) != 0)
        mode &= ~(mode_t)S_IRWXG;
    (void)fchmod(file, mode); /* where that cannot be had, fewer may read the file */
}

/* Where a file is written until it is whole: a name that is nobody's yet, short whatever the path's own, beside the
 * file it replaces, with the access of that file (*found, or null) from its first byte on. Returns a descriptor, or -1
 * and errno. */
static int create_part(const char *path, const struct stat *found, char part[PATH_BYTES])
{
    const mode_t mode = found != NULL ? S_IRUSR | S_IWUSR : 0666;
    const char *slash = strrchr(path, '/');
    const int directory_bytes = slash != NULL ? (int)(slash + 1 - path) : 0;
    struct timespec now = {0, 0};
    int file = -1;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    errno = EEXIST;
    for (int i = 0; i < MAX_PARTS && file < 0 && errno == EEXIST; i++) {
        const unsigned long long number = (unsigned long long)now.tv_sec * 1000000000u + (unsigned long)now.tv_nsec;
        if (snprintf(part, PATH_BYTES, "%.*s.dsrows-%ld-%llx.part", directory_bytes, path, (long)getpid(),
                     number + (unsigned)i) >= PATH_BYTES)
            errno = ENAMETOOLONG;
        else
            file = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    if (file >= 0 && found != NULL)
        take_access(file, found);
    return file;
}

static int write_all(int file, const unsigned char *bytes, uint64_t n_bytes)
{
    for (uint64_t done = 0; done < n_bytes;) {
        const ssize_t n = write(file, bytes + done, n_bytes - done);
        if (n < 0 && errno != EINTR)
            return 0;
        done += n > 0 ? (uint64_t)n : 0;
    }
    return 1;
}

/* The file is moved to its place when it is whole and on the disk, so that an interrupted save leaves the old one. */
static dsr_status replace_file(const dsr_sequence *sequence, const char *path, const struct stat *found,
                               const void *bytes, uint64_t n_bytes)
{
    char part[PATH_BYTES];
    const int file = create_part(path, found, part);
    if (file < 0)
        return io_error(sequence, "create a file beside", path);
    int is_whole = write_all(file, bytes, n_bytes) && fsync(file) == 0;
    int error = errno;
    if (close(file) != 0 && is_whole) {
        is_whole = 0;
        error = errno;
    }
    if (is_whole && rename(part, path) == 0)
        return DSR_OK;
    error = is_whole ? errno : error;
    (void)unlink(part);
    errno = error;
    return io_error(sequence, "write", path);
}

/* A link leads to the file to replace. Devices, pipes and directories are not replaced. */
static dsr_status write_file(const dsr_sequence *sequence, const char *path, const void *bytes, uint64_t n_bytes)
{
    struct stat found;
    char target[PATH_BYTES];
    errno = 0;
    if (lstat(path, &found) != 0)
        return errno == ENOENT ? replace_file(sequence, path, NULL, bytes, n_bytes) : io_error(sequence, "write", path);
    if (S_ISLNK(found.st_mode)) {
        if (realpath(path, target) == NULL || stat(target, &found) != 0)
            return io_error(sequence, "follow", path);
        path = target;
    }
    if (!S_ISREG(found.st_mode))
        return not_regular(sequence, "write", path);
    if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0) /* a rename asks the directory alone */
        return io_error(sequence, "write", path);
    return replace_file(sequence, path, &found, bytes, n_bytes);
}

dsr_status dsr_sequence_save_file(const dsr_sequence *sequence, const char *path)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_context *context = sequence->attention->context;
    if (path == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "sequence: path is null");
    const uint64_t n_bytes = dsr_sequence_save_bytes(sequence);
    void *bytes = dsri_allocate(&context->allocator, n_bytes, 64);
    if (bytes == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "sequence: no memory for %llu bytes",
                         (unsigned long long)n_bytes);
    dsr_status status = dsr_sequence_save(sequence, bytes, n_bytes);
    if (status == DSR_OK)
        status = write_file(sequence, path, bytes, n_bytes);
    dsri_release(&context->allocator, bytes, n_bytes);
    return status;
}

/* The rest of a file after its header: as long as the header says, so that no foreign file is taken in whole. */
static dsr_status load_rest(dsr_sequence *sequence, FILE *file, const char *path,
                            const unsigned char header[DSRI_FORM_HEADER_BYTES])
{
    dsr_context *context = sequence->attention->context;
    uint64_t size_bytes = 0;
    dsr_status status = dsri_sequence_form_bytes(sequence, header, &size_bytes);
    if (status != DSR_OK)
        return status;
    /* One byte more tells whether the file goes on. */
    unsigned char *bytes = dsri_allocate(&context->allocator, size_bytes + 1, 64);
    if (bytes == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "sequence: no memory for %llu bytes",
                         (unsigned long long)size_bytes);
    memcpy(bytes, header, DSRI_FORM_HEADER_BYTES);
    const uint64_t n = DSRI_FORM_HEADER_BYTES +
                       fread(bytes + DSRI_FORM_HEADER_BYTES, 1, size_bytes + 1 - DSRI_FORM_HEADER_BYTES, file);
    status = ferror(file) ? io_error(sequence, "read", path) : dsr_sequence_load(sequence, bytes, n);
    dsri_release(&context->allocator, bytes, size_bytes + 1);
    return status;
}

/* Opens a regular file. A pipe without a writer would make a plain open wait. */
static dsr_status open_regular(const dsr_sequence *sequence, const char *path, FILE **opened)
{
    struct stat found;
    errno = 0;
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return io_error(sequence, "open", path);
    dsr_status status = DSR_OK;
    if (fstat(file, &found) != 0)
        status = io_error(sequence, "open", path);
    else if (!S_ISREG(found.st_mode))
        status = not_regular(sequence, "read", path);
    else if ((*opened = fdopen(file, "rb")) == NULL)
        status = io_error(sequence, "open", path);
    if (status != DSR_OK)
        (void)close(file);
    return status;
}

dsr_status dsr_sequence_load_file(dsr_sequence *sequence, const char *path)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_attention *layer = sequence->attention;
    if (path == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "sequence: path is null");
    dsr_status status = dsri_layer_check_usable(layer);
    if (status != DSR_OK)
        return status;
    FILE *file = NULL;
    status = open_regular(sequence, path, &file);
    if (status != DSR_OK)
        return status;
    errno = 0;
    unsigned char header[DSRI_FORM_HEADER_BYTES];
    const size_t n = fread(header, 1, DSRI_FORM_HEADER_BYTES, file);
    if (ferror(file))
        status = io_error(sequence, "read", path);
    else
        status = n == DSRI_FORM_HEADER_BYTES ? load_rest(sequence, file, path, header)
                                             : dsr_sequence_load(sequence, header, n);
    fclose(file);
    return status;
}
