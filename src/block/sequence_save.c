/* The saved form of a sequence: little-endian, canonical (equal states give equal bytes), with version and checksum.
 *
 *   magic "DSRSEQ\r\n", u32 version, u32 header words, header words (u32 or F32 bits: configuration, fingerprint of
 *   the layer's tensors low word first, position),
 *   window rows oldest to newest, compressed rows, index keys, each followed by its scales if the caches are packed,
 * and for each compressor the projected kv and score rows that its state depends on; then u64 checksum of all bytes
 *   before it. */
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

enum {
    SAVE_VERSION = 2,
    N_CONFIG_WORDS = 16,
    N_LAYER_WORDS = N_CONFIG_WORDS + 2, /* that tell the layer */
    N_HEADER_WORDS = N_LAYER_WORDS + 1,
    LAYER_WORDS_AT = 16,
    MAGIC_BYTES = 8,
    CHECKSUM_BYTES = 8
};
enum { HEADER_BYTES = LAYER_WORDS_AT + N_HEADER_WORDS * 4 };

static const unsigned char magic[MAGIC_BYTES] = {'D', 'S', 'R', 'S', 'E', 'Q', '\r', '\n'};

static uint32_t word_of_float(float x)
{
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

static void layer_words(const dsr_attention *layer, uint32_t words[N_LAYER_WORDS])
{
    const dsr_attention_config *c = &layer->config;
    const uint32_t all[N_LAYER_WORDS] = {(uint32_t)c->kind,
                                         c->hidden_size,
                                         c->n_heads,
                                         c->q_rank,
                                         c->o_groups,
                                         c->o_rank,
                                         c->n_index_heads,
                                         c->top_k,
                                         word_of_float(c->epsilon),
                                         word_of_float(c->scale),
                                         word_of_float(c->rope_theta),
                                         word_of_float(c->yarn_factor),
                                         word_of_float(c->yarn_original_context),
                                         word_of_float(c->yarn_beta_fast),
                                         word_of_float(c->yarn_beta_slow),
                                         (uint32_t)c->cache,
                                         (uint32_t)layer->fingerprint,
                                         (uint32_t)(layer->fingerprint >> 32)};
    memcpy(words, all, sizeof all);
}

static void put_u32(unsigned char *to, uint32_t x)
{
    for (uint32_t i = 0; i < 4; i++)
        to[i] = (unsigned char)(x >> (8 * i));
}

static uint32_t get_u32(const unsigned char *from)
{
    return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static void put_u64(unsigned char *to, uint64_t x)
{
    put_u32(to, (uint32_t)x);
    put_u32(to + 4, (uint32_t)(x >> 32));
}

/* FNV-1a, 64 bits. */
static uint64_t hash_bytes(const unsigned char *bytes, uint64_t n_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n_bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* One piece of the payload: rows of a ring, or plain rows, in device memory. */
typedef struct piece {
    uint64_t byte_offset; /* of row 0 in the sequence's buffer */
    uint64_t row_bytes;
    uint64_t first_row;
    uint64_t n_rows;
    uint64_t ring_rows; /* 0: plain */
} piece;

enum { MAX_PIECES = 2 * 3 + 2 * DSRI_N_COMPRESSORS };

/* Appends entries of a cache: their values, then their scales; returns the new number of pieces. */
static uint32_t add_entries(piece *pieces, uint32_t n, const dsri_sequence_cache *cache, uint64_t first,
                            uint64_t n_entries, uint64_t ring_rows)
{
    pieces[n++] = (piece){cache->values, cache->value_bytes, first, n_entries, ring_rows};
    if (cache->scale_bytes)
        pieces[n++] = (piece){cache->scales, cache->scale_bytes, first, n_entries, ring_rows};
    return n;
}

static uint32_t list_pieces(const dsr_attention *layer, const dsri_sequence_layout *l, uint32_t position,
                            piece pieces[MAX_PIECES])
{
    const uint32_t ratio = dsri_layer_ratio(layer);
    const uint64_t n_entries = ratio ? position / ratio : 0;
    const uint32_t n_window = position < DSR_WINDOW ? position : DSR_WINDOW;
    uint32_t n = add_entries(pieces, 0, &l->kv, position - n_window, n_window, DSRI_RING_ROWS);
    n = add_entries(pieces, n, &l->kv, DSRI_RING_ROWS, n_entries, 0);
    if (layer->compressors[DSRI_INDEX].dim)
        n = add_entries(pieces, n, &l->keys, 0, n_entries, 0);
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS; i++) {
        const dsri_layer_compressor *c = &layer->compressors[i];
        if (c->dim == 0)
            continue;
        const uint32_t first = dsri_state_first_token(ratio, position);
        const uint64_t row_bytes = (uint64_t)c->n_columns * sizeof(float);
        pieces[n++] = (piece){l->compressors[i].kv_history, row_bytes, first, position - first, c->history_rows};
        pieces[n++] = (piece){l->compressors[i].score_history, row_bytes, first, position - first, c->history_rows};
    }
    return n;
}

static uint64_t payload_bytes(const piece *pieces, uint32_t n_pieces)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < n_pieces; i++)
        n_bytes += pieces[i].n_rows * pieces[i].row_bytes;
    return n_bytes;
}

/* Moves a piece between host memory and the buffer, run by run of consecutive rows. */
static dsr_status move_piece(dsr_buffer *buffer, const piece *p, unsigned char *host, int to_host)
{
    dsr_status status = DSR_OK;
    for (uint64_t done = 0; done < p->n_rows && status == DSR_OK;) {
        uint64_t row = p->first_row + done;
        uint64_t n = p->n_rows - done;
        if (p->ring_rows) {
            row %= p->ring_rows;
            n = n < p->ring_rows - row ? n : p->ring_rows - row;
        }
        const uint64_t offset = p->byte_offset + row * p->row_bytes;
        status = to_host ? dsr_buffer_read(buffer, offset, host + done * p->row_bytes, n * p->row_bytes)
                         : dsr_buffer_write(buffer, offset, host + done * p->row_bytes, n * p->row_bytes);
        done += n;
    }
    return status;
}

uint64_t dsr_sequence_save_bytes(const dsr_sequence *sequence)
{
    if (sequence == NULL)
        return 0;
    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(sequence->attention, &sequence->storage->layout, sequence->position, pieces);
    return HEADER_BYTES + payload_bytes(pieces, n) + CHECKSUM_BYTES;
}

dsr_status dsr_sequence_save(const dsr_sequence *sequence, void *memory, uint64_t size_bytes)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_attention *layer = sequence->attention;
    if (memory == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "sequence: memory is null");
    const uint64_t needed = dsr_sequence_save_bytes(sequence);
    if (size_bytes != needed)
        return dsri_fail(layer->context, DSR_ERR_SIZE, "sequence: memory holds %llu bytes, needs exactly %llu",
                         (unsigned long long)size_bytes, (unsigned long long)needed);
    dsr_status status = dsri_layer_check_usable(layer);
    if (status != DSR_OK)
        return status;
    unsigned char *bytes = memory;
    uint32_t words[N_LAYER_WORDS];
    layer_words(layer, words);
    memcpy(bytes, magic, MAGIC_BYTES);
    put_u32(bytes + MAGIC_BYTES, SAVE_VERSION);
    put_u32(bytes + MAGIC_BYTES + 4, N_HEADER_WORDS);
    for (uint32_t i = 0; i < N_LAYER_WORDS; i++)
        put_u32(bytes + LAYER_WORDS_AT + 4 * i, words[i]);
    put_u32(bytes + HEADER_BYTES - 4, sequence->position);

    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(layer, &sequence->storage->layout, sequence->position, pieces);
    uint64_t end = HEADER_BYTES;
    for (uint32_t i = 0; i < n && status == DSR_OK; i++) {
        status = move_piece(sequence->storage->buffer, &pieces[i], bytes + end, 1);
        end += pieces[i].n_rows * pieces[i].row_bytes;
    }
    put_u64(bytes + end, hash_bytes(bytes, end));
    return status;
}

static dsr_status bad_form(const dsr_sequence *sequence, const char *what)
{
    return dsri_fail(sequence->attention->context, DSR_ERR_FORMAT, "sequence: %s", what);
}

static const char not_a_form[] = "not a saved sequence, or cut off in its header";

/* Checks a saved form's header and reads from it the position and the bytes of the whole form. */
static dsr_status check_header(const dsr_sequence *sequence, const unsigned char *header, uint32_t *position,
                               uint64_t *size_bytes)
{
    const dsr_attention *layer = sequence->attention;
    if (memcmp(header, magic, MAGIC_BYTES) != 0)
        return bad_form(sequence, not_a_form);
    if (get_u32(header + MAGIC_BYTES) != SAVE_VERSION || get_u32(header + MAGIC_BYTES + 4) != N_HEADER_WORDS)
        return bad_form(sequence, "saved by a version with another form");
    uint32_t words[N_LAYER_WORDS];
    layer_words(layer, words);
    for (uint32_t i = 0; i < N_LAYER_WORDS; i++)
        if (get_u32(header + LAYER_WORDS_AT + 4 * i) != words[i])
            return bad_form(sequence, i < N_CONFIG_WORDS ? "saved by a layer of another configuration"
                                                         : "saved by a layer with other weights");
    const uint32_t saved_position = get_u32(header + HEADER_BYTES - 4);
    if (saved_position > DSRI_MAX_CONTEXT)
        return bad_form(sequence, "the saved position is out of range");
    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(layer, &sequence->storage->layout, saved_position, pieces);
    *position = saved_position;
    *size_bytes = HEADER_BYTES + payload_bytes(pieces, n) + CHECKSUM_BYTES;
    return DSR_OK;
}

static dsr_status check_form(const dsr_sequence *sequence, const unsigned char *bytes, uint64_t size_bytes,
                             uint32_t *position)
{
    uint64_t needed;
    if (size_bytes < HEADER_BYTES)
        return bad_form(sequence, not_a_form);
    const dsr_status status = check_header(sequence, bytes, position, &needed);
    if (status != DSR_OK)
        return status;
    if (size_bytes != needed)
        return dsri_fail(sequence->attention->context, DSR_ERR_FORMAT,
                         "sequence: the saved sequence has %llu bytes, needs %llu at position %u",
                         (unsigned long long)size_bytes, (unsigned long long)needed, *position);
    unsigned char sum[CHECKSUM_BYTES];
    put_u64(sum, hash_bytes(bytes, size_bytes - CHECKSUM_BYTES));
    if (memcmp(sum, bytes + size_bytes - CHECKSUM_BYTES, CHECKSUM_BYTES) != 0)
        return bad_form(sequence, "the saved sequence is damaged: its checksum is wrong");
    return DSR_OK;
}

static dsr_status fill_storage(dsr_attention *layer, dsri_sequence_storage *storage, uint32_t position,
                               const unsigned char *payload)
{
    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(layer, &storage->layout, position, pieces);
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < n && status == DSR_OK; i++) {
        /* move_piece only reads the host memory here. */
        status = move_piece(storage->buffer, &pieces[i], (unsigned char *)(uintptr_t)payload, 0);
        payload += pieces[i].n_rows * pieces[i].row_bytes;
    }
    return status == DSR_OK ? dsri_sequence_rebuild_states(layer, storage, position) : status;
}

/* Replaces the state by that of a checked form. */
static dsr_status load_form(dsr_sequence *sequence, const unsigned char *bytes, uint32_t position)
{
    dsr_attention *layer = sequence->attention;
    const uint32_t room = sequence->storage->max_context;
    dsri_sequence_storage *storage = NULL;
    dsr_status status = dsri_storage_create(layer, position > room ? position : room, &storage);
    if (status != DSR_OK)
        return status;
    status = fill_storage(layer, storage, position, bytes + HEADER_BYTES);
    if (status != DSR_OK) {
        dsri_storage_release(layer, storage);
        return status;
    }
    dsri_storage_release(layer, sequence->storage);
    sequence->storage = storage;
    sequence->position = position;
    sequence->max_truncate = 0;
    return DSR_OK;
}

dsr_status dsr_sequence_load(dsr_sequence *sequence, const void *memory, uint64_t size_bytes)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_attention *layer = sequence->attention;
    if (memory == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "sequence: memory is null");
    uint32_t position = 0;
    dsr_status status = dsri_layer_check_usable(layer);
    if (status == DSR_OK)
        status = check_form(sequence, memory, size_bytes, &position);
    return status == DSR_OK ? load_form(sequence, memory, position) : status;
}

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
                            const unsigned char header[HEADER_BYTES])
{
    dsr_context *context = sequence->attention->context;
    uint32_t position = 0;
    uint64_t size_bytes = 0;
    dsr_status status = check_header(sequence, header, &position, &size_bytes);
    if (status != DSR_OK)
        return status;
    /* One byte more tells whether the file goes on. */
    unsigned char *bytes = dsri_allocate(&context->allocator, size_bytes + 1, 64);
    if (bytes == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "sequence: no memory for %llu bytes",
                         (unsigned long long)size_bytes);
    memcpy(bytes, header, HEADER_BYTES);
    const uint64_t n = HEADER_BYTES + fread(bytes + HEADER_BYTES, 1, size_bytes + 1 - HEADER_BYTES, file);
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
    unsigned char header[HEADER_BYTES];
    const size_t n = fread(header, 1, HEADER_BYTES, file);
    if (ferror(file))
        status = io_error(sequence, "read", path);
    else
        status = n == HEADER_BYTES ? load_rest(sequence, file, path, header) : bad_form(sequence, not_a_form);
    fclose(file);
    return status;
}
